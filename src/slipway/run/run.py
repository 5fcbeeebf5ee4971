"""A run under way, on all ranks: its steps, when the ranks agree, what is recorded and saved, and how it ends."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from slipway.base import startup_time
from slipway.base.environment import Environment
from slipway.base.errors import SlipwayError
from slipway.base.goodput import EVALUATED, SAVED, TRAINED
from slipway.base.stop import Reason, StopRequest
from slipway.checkpoint.header import Header, Metric, Position
from slipway.dist.collectives import RootOnly, all_gather_json, broadcast_json
from slipway.dist.communicator import Communicator
from slipway.run.agreement import Agreement, Pace, Schedule
from slipway.run.program import Program, Speed
from slipway.run.recorder import Recorder

T = TypeVar("T")


class Stopped(SystemExit):
    """All ranks have agreed to stop, and the run is saved: the program ends here, with the contract's exit code."""

    def __init__(self, code: int, reason: Reason) -> None:
        """End the program; raised by a session.

        Args:
            code: exit code: 0 under a launcher, which would take another one for a failure, and 75 without one, or
                where one has died.
            reason: the attribute of this name: ``reason.word`` is time-limit, user, signal, or launcher, where that has
                died.
        """
        super().__init__(code)
        self.reason = reason


@dataclass(frozen=True)
class Policy:
    """How often something is due."""

    log_interval: int
    """Steps between two records."""
    checkpoint_steps: int | None
    """Steps between two checkpoints; None for no such."""
    checkpoint_minutes: float | None
    """Minutes between two checkpoints; None for no such."""


class Run:
    """A run under way. All ranks call the same methods in the same order, but for the number of steps in an epoch."""

    def __init__(
        self,
        program: Program,
        comm: Communicator,
        recorder: RootOnly[Recorder],
        request: StopRequest,
        environment: Environment,
        *,
        found: Header,
        policy: Policy,
    ) -> None:
        """Go on from what was ``found``."""
        self._program = program
        self._comm = comm
        self._recorder = recorder
        self._request = request
        root = recorder.on_root
        self._agreement = Agreement(comm, request, root.attempt.stop_request if root else None)
        self._environment = environment
        self._policy = policy
        self._schedule = Schedule(log_interval=policy.log_interval, checkpoint_interval=policy.checkpoint_steps)
        self._checked_step = found.position.step
        self._checked_at = self._saved_at = time.monotonic()
        self._saved_step = found.position.step
        self._save_seconds = 0.0
        self._furthest = found.position.step
        self._has_reserved = False
        self._has_started = False
        self._owed = False
        self._is_alone = comm.world.size == 1
        """Then a rank that is asked to stop need not wait until the others would agree on that."""
        self._metric: Metric | None = None
        self._saved_metric: Metric | None = None
        """That of the last checkpoint: another one of this step, at the end of the epoch, carries it too."""
        self.start = found.position
        """Where this attempt goes on."""
        self.position = found.position
        self.reason = Reason.NONE
        """Why to stop, as of the last agreement."""
        self.stopped: Stopped | None = None
        """What has ended the run, if that was not its own end."""
        self._plan()

    @contextlib.contextmanager
    def errors_marked(self) -> Iterator[None]:
        """Record in an error that ends the body whether this rank had taken a step before."""
        try:
            yield
        except SlipwayError as error:
            error.in_training = self.step > self.start.step
            raise

    @property
    def position(self) -> Position:
        """Where training stands."""
        return self._agreed._replace(step=self.step, samples=self.samples)

    @position.setter
    def position(self, position: Position) -> None:
        self._agreed = position
        self.step, self.samples = position.step, position.samples

    def keep_metric(self, metric: Metric) -> None:
        """Let the next checkpoint carry ``metric``."""
        self._metric = metric

    def watch(self, batches: Iterable[T], *, most: int) -> Iterator[T]:
        """Pass on ``batches`` of what is no training, as an evaluation, and agree now and then whether to stop.

        Args:
            batches: of this rank.
            most: number of batches of the rank that has the most.

        Raises:
            Stopped: if the ranks agree on that; the run is saved where it stands, to continue with these batches.
        """
        pace, counted, began = Pace(), 0, time.monotonic()
        iterator = iter(batches)
        for number in range(1, most + 1):
            yield from itertools.islice(iterator, 1)
            if number - counted < pace.steps or number == most:
                continue
            self.reason, totals = self._agreement.agree([time.monotonic() - began])
            if self.reason:
                self._furthest = self._program.meet(self.step)
                self._stop()
            pace.observe(number - counted, totals[0] / self._comm.world.size)
            counted, began = number, time.monotonic()

    def begin(self) -> None:
        """Stop before anything is trained if an earlier session of the process was asked to, after its last step.

        Raises:
            Stopped: on every rank, if that was so on any; the next attempt begins where this one would have begun.
        """
        self.reason = self._agreement.inherited()
        if self.reason:
            self._stop()

    def require_running(self) -> None:
        """Raise Stopped again if it has ended the run, and the script has caught it."""
        if self.stopped:
            raise self.stopped

    def start_clock(self) -> None:
        """Begin to measure the time of steps, after something else."""
        self._enter(TRAINED)
        self._checked_at = time.monotonic()

    def advance(self, samples: int = 0) -> None:
        """Count an optimiser step that is done, and see whether something is due after it.

        Args:
            samples: that it has consumed over all ranks, where the program counts them.

        Raises:
            Stopped: if the ranks agree on that; everything is saved then.
            SlipwayError: on every rank, if training cannot go on.
        """
        self.step += 1  # and no new Position: this is the hot path
        self.samples += samples
        if self.step >= self._schedule.next_step or (self._is_alone and self._request.reason):
            self._check()

    def count(self, samples: int = 0) -> None:
        """Count an optimiser step that is done where nothing can be due: behind the last batch of a loop."""
        self.step += 1
        self.samples += samples

    def end_batches(self) -> None:
        """Agree behind the last batch of a loop that all ranks have ended at the same step.

        Raises:
            Stopped, SlipwayError: as ``advance`` does.
        """
        self._check(save=False)
        self._enter(EVALUATED)

    def join(self, *, blocked: bool) -> None:
        """Take part in what the other ranks agree on, until all have ended the loop over their batches.

        Once all have, a reason to stop has the run saved, and is acted upon at the end of the epoch: a script that is
        resumed behind its last batch would have no loss to print.

        Args:
            blocked: whether gradients wait for an optimiser step, so that this is no place to stop.

        Raises:
            Stopped, SlipwayError: as ``advance`` does; Stopped only if other ranks had batches left.
        """
        while not self._check(ended=True, save=False, blocked=blocked):
            pass
        steps = all_gather_json(self._comm, self.step)
        if len(set(steps)) > 1:  # a rank with fewer batches; all count on from the same number
            self.step = max(steps)
            self._checked_step = self.step
        self._enter(EVALUATED)
        self._plan()

    def end_epoch(self, *, last: bool, blocked: bool = False) -> None:
        """Save at the beginning of the next epoch, and stop there if the ranks agree on that.

        Where gradients wait for an optimiser step, both come after that.

        Raises:
            Stopped, SlipwayError: as ``advance`` does.
        """
        self._check(save=True, blocked=blocked and not last, last=last)
        self._plan()

    def conclude(self) -> None:
        """Record that the run is done, of which everything is saved.

        Raises:
            SlipwayError: on every rank, if that could not be written.
        """
        self._end(Reason.NONE)

    def save_rest(self, *, save: bool = False) -> None:
        """Save what is not saved, or in any case if asked to ``save``."""
        self._furthest = self._program.meet(self.step)
        if broadcast_json(self._comm, self.step != self._saved_step or bool(self._metric) or save):
            self._save()

    def _check(
        self, *, ended: bool = False, save: bool | None = None, blocked: bool = False, last: bool = False
    ) -> bool:
        """Let the ranks agree, and do what is due by the votes of all; return whether all have ended.

        Args:
            ended: whether this rank has no batch left.
            save: whether to save; None to save if that is due.
            blocked: whether gradients wait for an optimiser step.
            last: whether training ends here, so that there is nothing to stop.
        """
        now, step = time.monotonic(), self.step
        log_due = step > self._checked_step and self._schedule.log_due(step)
        if save is None:
            save = self._owed or self._checkpoint_due(now)
        votes = [now - self._checked_at, step - self._checked_step, ended, log_due, save, blocked]
        reason, totals = self._agreement.agree([*votes, *self._program.sums()])
        if not self._has_started and step > self.start.step:
            self._note_start()
        seconds, steps, ended_ranks, log_votes, save_votes, blocked_ranks, *sums = totals
        self.reason = reason
        position = self.position.with_observed(bad=0, seconds=seconds / self._comm.world.size)
        self.position = self._program.observed(position, sums)
        if steps:
            self._schedule.pace.observe(int(steps), seconds)
        all_ended = ended_ranks == self._comm.world.size
        stops = bool(reason) and not last and not blocked_ranks
        self._owed = bool((save_votes or reason) and blocked_ranks)
        if log_votes or stops or (save_votes and not blocked_ranks):
            self._furthest = self._program.meet(self.step)
            if log_votes:
                position = self.position._replace(step=self._furthest)
                speed = Speed(steps / max(seconds, 1e-9), self._save_seconds)
                self._save_seconds = 0.0
                self.write(self._program.record(position, speed))
            if stops and not all_ended:
                self._stop()
            if stops or (save_votes and not blocked_ranks):
                self._save()
        if steps and not blocked_ranks:
            self._reserve()
        self._checked_step, self._checked_at = self.step, time.monotonic()
        self._plan()
        return all_ended

    def _note_start(self) -> None:
        """Record how long it took to the first step; the sums that the ranks have agreed on have waited for it."""
        self._has_started = True
        parts = startup_time.end()
        if root := self._recorder.on_root:
            root.clock.write_start(parts)
        self._program.started(parts)

    def _plan(self) -> None:
        """Decide after which step something is due next."""
        self._schedule.plan(self.step)
        if self._owed:
            self._schedule.next_step = self.step + 1

    def _checkpoint_due(self, now: float) -> bool:
        if self._schedule.checkpoint_due(self.step):
            return True
        minutes = self._policy.checkpoint_minutes
        return bool(minutes) and self._comm.world.is_root and now - self._saved_at >= 60 * (minutes or 0)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record`` to metrics.jsonl, on rank 0.

        Raises:
            Stopped: as ``require_running`` does.
        """
        self.require_running()
        if root := self._recorder.on_root:
            root.write(dict(record))
            root.clock.waited(record.get("data_seconds", 0))

    def _enter(self, part: str) -> str:
        """From now on the time of rank 0 goes into ``part`` of goodput.jsonl; return the part before."""
        return self._recorder.on_root.clock.enter(part) if self._recorder.on_root else part

    def _reserve(self) -> None:
        """Prepare for the first checkpoint, once a step has made the optimiser's state.

        Raises:
            SlipwayError: on every rank, if that cannot be saved.
        """
        if not self._has_reserved:
            self._has_reserved, before = True, self._enter(SAVED)
            self._recorder.run(lambda root: root.reserve(self._program.capture(Header(self.position))))
            self._enter(before)

    def _save(self) -> None:
        """Save in the background, at the step of the rank that is furthest."""
        began, before = time.monotonic(), self._enter(SAVED)
        metric = self._metric or (self._saved_metric if self.step == self._saved_step else None)
        facts = self._program.facts()
        if root := self._recorder.on_root:
            position = self.position._replace(step=self._furthest)
            try:
                checkpoint = self._program.capture(Header(position, metric, facts))
            except SlipwayError as error:  # what the script has changed since the first checkpoint
                root.note_not_saved(error, step=self._furthest)
            else:
                root.save(checkpoint)
            root.clock.write(self._furthest)
        self._enter(before)
        self._metric, self._saved_metric = None, metric
        self._has_reserved = True
        self._saved_step, self._saved_at = self.step, time.monotonic()
        self._save_seconds += self._saved_at - began

    def _stop(self) -> None:
        reason = self.reason
        if broadcast_json(self._comm, self._furthest > self.start.step or bool(self._metric)):
            self._save()
        self._end(reason)
        self.stopped = Stopped(self._environment.exit_code(reason, ranks=self._comm.world.size), reason)
        raise self.stopped

    def _end(self, reason: Reason) -> None:
        def end(recorder: Recorder) -> None:
            recorder.clock.enter(SAVED)
            recorder.finish()
            recorder.clock.enter(EVALUATED)
            if not reason:
                self._program.write_results()
            self._program.ended(recorder.conclude(reason, step=self._furthest))

        self._recorder.run(end)
        startup_time.restart()

"""A run under way, on all ranks: its steps, when the ranks agree, what is recorded and saved, and how it ends."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from slipway.agreement import Agreement
from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.header import Header, Metric
from slipway.communicator import Communicator
from slipway.communicator.collectives import RootOnly, all_gather_json
from slipway.environment import Environment
from slipway.errors import SessionError
from slipway.metrics import Record
from slipway.recorder import Recorder
from slipway.schedule import Schedule
from slipway.stop import Reason
from slipway.terminal import ProgressLine
from slipway.window import Window

log = logging.getLogger(__name__)


class Stopped(SystemExit):
    """All ranks have agreed to stop, and the run is saved: the program ends here, with the contract's exit code."""

    def __init__(self, code: int, reason: Reason) -> None:
        """End the program; raised by a session.

        Args:
            code: exit code: 0 under a launcher, which would take another one for a failure, and 75 without one.
            reason: the attribute of this name: ``reason.word`` is time-limit, user or signal.
        """
        super().__init__(code)
        self.reason = reason


@dataclass(frozen=True)
class Policy:
    """How often something is due, and what ends a run."""

    log_interval: int
    """Steps between two records."""
    checkpoint_steps: int | None
    """Steps between two checkpoints; None for no such."""
    checkpoint_minutes: float | None
    """Minutes between two checkpoints; None for no such."""
    allow_nonfinite: bool
    """Whether training goes on after inf or nan was logged."""


class Program(Protocol):
    """What trains in a run."""

    def place(self) -> Any:
        """Return where this rank stands within the epoch, as JSON."""
        ...

    def facts(self, places: list[Any]) -> dict[str, Any]:
        """Return what a checkpoint must say to continue from ``places``, those of all ranks."""
        ...

    def capture(self, header: Header) -> Checkpoint:
        """Return a checkpoint of all that trains; called on rank 0 alone."""
        ...

    def describe(self) -> dict[str, float]:
        """Return the epoch, fractions of it too, and what else a record of training says."""
        ...

    def progress(self) -> float:
        """Return the part of the whole training that is done: from 0 to 1."""
        ...


class Run:
    """A run under way. All ranks call the same methods in the same order, but for the number of steps in an epoch."""

    def __init__(
        self,
        program: Program,
        comm: Communicator,
        recorder: RootOnly[Recorder],
        agreement: Agreement,
        environment: Environment,
        *,
        found: Header,
        policy: Policy,
    ) -> None:
        """Go on from what was ``found``."""
        self._program = program
        self._comm = comm
        self._recorder = recorder
        self._agreement = agreement
        self._environment = environment
        self._policy = policy
        self._schedule = Schedule(log_interval=policy.log_interval, checkpoint_interval=policy.checkpoint_steps)
        self._checked = found.position
        self._checked_at = self._saved_at = time.monotonic()
        self._saved_step = found.position.step
        self._furthest = found.position.step
        self._owed = False
        self._is_alone = comm.world.size == 1
        """Then a rank that is asked to stop need not wait until the others would agree on that."""
        self._metric: Metric | None = None
        self.position = self.start = found.position
        self.window = Window(found.facts.get("window"))
        self.reason = Reason.NONE
        """Why to stop, as of the last agreement."""
        self.stopped: Stopped | None = None
        """What has ended the run, if that was not its own end."""
        self._progress = ProgressLine()
        self._plan()

    def keep_metric(self, metric: Metric) -> None:
        """Let the next checkpoint carry ``metric``."""
        self._metric = metric

    def start_clock(self) -> None:
        """Begin to measure the time of steps, after something else."""
        self._checked_at = time.monotonic()

    def advance(self) -> None:
        """Count an optimiser step that is done, and see whether something is due after it.

        Raises:
            Stopped: if the ranks agree on that; everything is saved then.
            SessionError: on every rank, if something that was logged is not finite.
        """
        self.count()
        if self.position.step >= self._schedule.next_step or (self._is_alone and self._agreement.is_asked):
            self._check(ended=False, save=False, blocked=False)

    def count(self) -> None:
        """Count an optimiser step that is done where nothing can be due: behind the last batch of a loop."""
        self.position = self.position.advance(0)

    def join(self, *, blocked: bool) -> None:
        """Take part in what the other ranks agree on, until all have ended the loop over their batches.

        Once all have, a reason to stop has the run saved, and is acted upon at the end of the epoch: a script that is
        resumed behind its last batch would have no loss to print.

        Args:
            blocked: whether gradients wait for an optimiser step, so that this is no place to stop.

        Raises:
            Stopped, SessionError: as ``advance`` does; Stopped only if other ranks had batches left.
        """
        while not self._check(ended=True, save=False, blocked=blocked):
            pass
        steps = all_gather_json(self._comm, self.position.step)
        if len(set(steps)) > 1:  # a rank with fewer batches; all count on from the same number
            self.position = self.position._replace(step=max(steps))
            self._checked = self.position
        self._plan()

    def end_epoch(self, *, last: bool, blocked: bool) -> None:
        """Save at the beginning of the next epoch, and stop there if the ranks agree on that.

        Where gradients wait for an optimiser step, both come after that.

        Raises:
            Stopped, SessionError: as ``advance`` does.
        """
        self._check(ended=False, save=True, blocked=blocked and not last, last=last)
        self._plan()

    def conclude(self, *, left_early: bool) -> None:
        """Save what is not saved, and record that the run is done, also if the script has ``left_early``.

        Raises:
            SlipwayError: on every rank, if that could not be written.
        """
        places = self._gather()
        if self.position.step != self._saved_step or self._metric or left_early:
            self._save(places)
        self._end(Reason.NONE)
        log.info("done at step %d", self._furthest)

    def _check(self, *, ended: bool, save: bool, blocked: bool, last: bool = False) -> bool:
        """Let the ranks agree, and do what is due by the votes of all; return whether all have ended."""
        now, step = time.monotonic(), self.position.step
        log_due = step > self._checked.step and self._schedule.log_due(step)
        save = save or (not ended and (self._owed or self._checkpoint_due(now)))
        votes = [now - self._checked_at, step - self._checked.step, ended, log_due, save, blocked]
        reason, totals = self._agreement.agree(torch.tensor(votes, dtype=torch.float64))
        seconds, steps, ended_ranks, log_votes, save_votes, blocked_ranks = totals
        self.reason = reason
        self.position = self.position.with_observed(bad=0, seconds=seconds / self._comm.world.size)
        if steps:
            self._schedule.pace.observe(int(steps), seconds)
        all_ended = ended_ranks == self._comm.world.size
        stops = bool(reason) and not last and not blocked_ranks
        self._owed = bool((save_votes or reason) and blocked_ranks)
        if log_votes or stops or (save_votes and not blocked_ranks):
            places = self._gather()
            if log_votes:
                self._record(steps / max(seconds, 1e-9))
            if stops and not all_ended:
                self._stop(places)
            if stops or (save_votes and not blocked_ranks):
                self._save(places)
        self._checked, self._checked_at = self.position, time.monotonic()
        self._plan()
        return all_ended

    def _plan(self) -> None:
        """Decide after which step something is due next."""
        self._schedule.plan(self.position.step)
        if self._owed:
            self._schedule.next_step = self.position.step + 1

    def _checkpoint_due(self, now: float) -> bool:
        if self._schedule.checkpoint_due(self.position.step):
            return True
        minutes = self._policy.checkpoint_minutes
        return bool(minutes) and self._comm.world.is_root and now - self._saved_at >= 60 * (minutes or 0)

    def _gather(self) -> list[Any]:
        """Add up what all ranks have logged, and return where they stand."""
        found = all_gather_json(self._comm, [self.window.take(), self._program.place(), self.position.step])
        self.window.add([part for part, _, _ in found])
        self._furthest = max(step for _, _, step in found)
        names = self.window.not_finite
        if names and not self._policy.allow_nonfinite:
            error = SessionError(
                f"{', '.join(names)} became inf or nan by step {self._furthest}: training diverged. Nothing of "
                "it is saved; lower the learning rate, or clip gradients. allow_nonfinite=True goes on all the same."
            )
            error.raised_on_all_ranks = True
            raise error
        return [[*place, step] for _, place, step in found]

    def _record(self, rate: float) -> None:
        means = self.window.means
        self.window.clear()
        record: Record = {
            "kind": "train",
            "step": self._furthest,
            **self._program.describe(),
            "elapsed": self.position.elapsed,
            **means,
            "steps_per_second": rate,
        }
        self.write(record)
        self._progress.show(record, rate=rate, done=self._program.progress())

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record`` to metrics.jsonl, on rank 0."""
        if self._recorder.on_root:
            self._recorder.on_root.write(dict(record))

    def _save(self, places: list[Any]) -> None:
        """Save in the background, at the step of the rank that is furthest."""
        facts = self._program.facts(places) | {"window": self.window.totals}
        if self._recorder.on_root:
            position = self.position._replace(step=self._furthest)
            self._recorder.on_root.save(self._program.capture(Header(position, self._metric, facts)))
        self._metric = None
        self._saved_step, self._saved_at = self.position.step, time.monotonic()

    def _stop(self, places: list[Any]) -> None:
        reason = self.reason
        if self._furthest > self.start.step or self._metric:
            self._save(places)
        self._end(reason)
        log.info("stopped (%s) at step %d, saved; the same command continues", reason.word, self._furthest)
        self.stopped = Stopped(self._environment.exit_code(stopped=True, ranks=self._comm.world.size), reason)
        raise self.stopped

    def _end(self, reason: Reason) -> None:
        def end(recorder: Recorder) -> None:
            recorder.finish()
            recorder.conclude(reason, step=self._furthest)

        self._recorder.run(end)

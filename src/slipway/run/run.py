"""State of a training run on all ranks: step count, votes, records, saves, and the end of the run."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from slipway.base import startup_time
from slipway.base.environment import Environment
from slipway.base.errors import LostFolderError, SlipwayError
from slipway.base.goodput import EVALUATED, SAVED, TRAINED
from slipway.base.stop import Reason, StopRequest
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Metric, Position
from slipway.checkpoint.sharded_save import ShardWriter
from slipway.dist.collectives import RootOnly, all_gather_json, broadcast_json, gather_bytes, raise_on_all_ranks
from slipway.dist.communicator import Communicator
from slipway.run.agreement import Agreement, Schedule, VoteInterval
from slipway.run.program import Policy, Program, Speed, Stopped
from slipway.run.recorder import Recorder

T = TypeVar("T")


class Run:
    """State of a run. All ranks call the same methods in the same order; only the steps per epoch may differ."""

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
        shards: ShardWriter | None = None,
    ) -> None:
        """Continue from the checkpoint header ``found``; ``shards`` writes this rank's part of a sharded state."""
        self._program = program
        self._comm = comm
        self._recorder = recorder
        self._shards = shards
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
        self._max_step = found.position.step
        self._has_reserved = False
        self._has_started = False
        self._owed = False
        self._is_only_rank = comm.world.size == 1
        """Whether this is the only rank, which can stop on a request without waiting for the next vote."""
        self._metric: Metric | None = None
        self._saved_metric: Metric | None = None
        """Metric of the last checkpoint; a second checkpoint of the same step, at the epoch's end, carries it too."""
        self.start = found.position
        """Position from which this attempt continues."""
        self.position = found.position
        self.reason = Reason.NONE
        """Reason to stop, as of the last vote."""
        self.stopped: Stopped | None = None
        """The exception that stopped the run; None if the run was not stopped."""
        self._plan()

    @contextlib.contextmanager
    def mark_errors(self) -> Iterator[None]:
        """Record in a SlipwayError that ends the body whether this rank has done a step in this attempt."""
        try:
            yield
        except SlipwayError as error:
            error.in_training = self.step > self.start.step
            raise

    @property
    def position(self) -> Position:
        """Current position in training."""
        return self._agreed._replace(step=self.step, samples=self.samples)

    @position.setter
    def position(self, position: Position) -> None:
        self._agreed = position
        self.step, self.samples = position.step, position.samples

    def set_metric(self, metric: Metric) -> None:
        """Store ``metric`` in the next checkpoint."""
        self._metric = metric

    def watch(self, batches: Iterable[T], *, most: int) -> Iterator[T]:
        """Yield ``batches`` that do not train, such as those of an evaluation, and vote regularly on whether to stop.

        Args:
            batches: this rank's batches.
            most: largest number of batches of any rank.

        Raises:
            Stopped: if the ranks agree to stop. The run is saved at its current step; the next attempt repeats these
                batches.
        """
        pace, counted, began = VoteInterval(), 0, time.monotonic()
        iterator = iter(batches)
        for number in range(1, most + 1):
            yield from itertools.islice(iterator, 1)
            if number - counted < pace.steps or number == most:
                continue
            self.reason, totals = self._agreement.agree([time.monotonic() - began])
            if self.reason:
                self._max_step = self._program.sync_step(self.step)
                self._stop()
            pace.observe(number - counted, totals[0] / self._comm.world.size)
            counted, began = number, time.monotonic()

    def begin(self) -> None:
        """Stop before training if an earlier session of this process received a request to stop after its last step.

        Raises:
            Stopped: on every rank, if any rank received a request; the next attempt begins at the same position.
        """
        self.reason = self._agreement.inherited()
        if self.reason:
            self._stop()

    def require_running(self) -> None:
        """Raise Stopped again if it ended the run but the script caught it."""
        if self.stopped:
            raise self.stopped

    def start_clock(self) -> None:
        """Start to measure the time of steps, after an evaluation or the like."""
        self._enter(TRAINED)
        self._checked_at = time.monotonic()

    def advance(self, samples: int = 0) -> None:
        """Count one completed optimizer step, and vote, record and save if that is due.

        Args:
            samples: samples that the step consumed over all ranks, if the program counts them.

        Raises:
            Stopped: if the ranks agree to stop; everything is saved then.
            SlipwayError: on every rank, if training cannot continue.
        """
        self.step += 1  # without a new Position: this is the hot path
        self.samples += samples
        if self.step >= self._schedule.next_step or (self._is_only_rank and self._request.reason):
            self._check()

    def count(self, samples: int = 0) -> None:
        """Count one optimizer step without a vote: after the last batch of a loop."""
        self.step += 1
        self.samples += samples

    def end_batches(self) -> None:
        """Vote after the last batch of a loop that all ranks have ended at the same step.

        Raises:
            Stopped, SlipwayError: see ``advance``.
        """
        self._check(save=False)
        self._enter(EVALUATED)

    def wait_for_other_ranks(self, *, blocked: bool) -> None:
        """Take part in the votes of the other ranks until all ranks have ended the loop over their batches.

        If the last of these votes is to stop, the run is saved now but stops at the end of the epoch: a script that
        resumes after its last batch would have no loss to print.

        Args:
            blocked: whether accumulated gradients await an optimizer step, so that the run cannot stop here.

        Raises:
            Stopped, SlipwayError: see ``advance``; Stopped only if other ranks had batches left.
        """
        while not self._check(ended=True, save=False, blocked=blocked):
            pass
        steps = all_gather_json(self._comm, self.step)
        if len(set(steps)) > 1:  # a rank had fewer batches; all ranks continue from the same step
            self.step = max(steps)
            self._checked_step = self.step
        self._enter(EVALUATED)
        self._plan()

    def end_epoch(self, *, last: bool, blocked: bool = False) -> None:
        """Save at the beginning of the next epoch, and stop there if the ranks agree to.

        If accumulated gradients await an optimizer step, both are delayed until after that step.

        Raises:
            Stopped, SlipwayError: see ``advance``.
        """
        self._check(save=True, blocked=blocked and not last, last=last)
        self._settle()  # the next vote may be far: an evaluation or the like may follow
        self._plan()

    def conclude(self) -> None:
        """Record that the run is done; everything must have been saved before.

        Raises:
            SlipwayError: on every rank, if the records cannot be written.
        """
        self._end(Reason.NONE)

    def wait_for_save(self) -> None:
        """Wait until no save is in progress."""
        self._settle()
        self._recorder.run(lambda root: root.wait())

    def save_unsaved(self, *, save: bool = False) -> None:
        """Save unsaved progress, or save unconditionally if ``save`` is set."""
        self._max_step = self._program.sync_step(self.step)
        if broadcast_json(self._comm, self.step != self._saved_step or bool(self._metric) or save):
            self._save()

    def _check(
        self, *, ended: bool = False, save: bool | None = None, blocked: bool = False, last: bool = False
    ) -> bool:
        """Vote, then record, save or stop as the votes of all ranks require; return whether all ranks have ended.

        Args:
            ended: whether this rank has no batch left.
            save: whether to save; None to save if a checkpoint is due.
            blocked: whether accumulated gradients await an optimizer step.
            last: whether training ends here, so that a request to stop has no effect.
        """
        now, step = time.monotonic(), self.step
        log_due = step > self._checked_step and self._schedule.log_due(step)
        if save is None:
            save = self._owed or self._checkpoint_due(now)
        written = bool(self._shards and self._shards.is_written)
        votes = [now - self._checked_at, step - self._checked_step, ended, log_due, save, blocked, written]
        reason, totals = self._agreement.agree([*votes, *self._program.local_counters()])
        if not self._has_started and step > self.start.step:
            self._record_start()
        seconds, steps, ended_ranks, log_votes, save_votes, blocked_ranks, written_ranks, *sums = totals
        self.reason = reason
        position = self.position.with_added(bad=0, seconds=seconds / self._comm.world.size)
        self.position = self._program.on_reduced(position, sums)
        if steps:
            self._schedule.pace.observe(int(steps), seconds)
        if written_ranks == self._comm.world.size:
            self._settle()
        all_ended = ended_ranks == self._comm.world.size
        stops = bool(reason) and not last and not blocked_ranks
        self._owed = bool((save_votes or reason) and blocked_ranks)
        if log_votes or stops or (save_votes and not blocked_ranks):
            self._max_step = self._program.sync_step(self.step)
            if log_votes:
                position = self.position._replace(step=self._max_step)
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

    def _record_start(self) -> None:
        """Record the time up to the first step; the vote before this call has synchronized the ranks after it."""
        self._has_started = True
        parts = startup_time.end()
        if root := self._recorder.on_root:
            root.clock.write_start(parts)
        self._program.started(parts)

    def _plan(self) -> None:
        """Determine the step after which something is due next."""
        self._schedule.plan(self.step)
        if self._owed:
            self._schedule.next_step = self.step + 1

    def _checkpoint_due(self, now: float) -> bool:
        if self._schedule.checkpoint_due(self.step):
            return True
        minutes = self._policy.checkpoint_minutes
        return bool(minutes and self._comm.world.is_root and now - self._saved_at >= 60 * minutes)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record`` to metrics.jsonl, on rank 0.

        Raises:
            Stopped: see ``require_running``.
        """
        self.require_running()
        if root := self._recorder.on_root:
            root.write(dict(record))
            root.clock.waited(record.get("data_seconds", 0))

    def _enter(self, part: str) -> str:
        """Count rank 0's time from now on as ``part`` in goodput.jsonl; return the previous part."""
        return self._recorder.on_root.clock.enter(part) if self._recorder.on_root else part

    def _reserve(self) -> None:
        """Allocate buffers for the first checkpoint after a step has created the optimizer's state.

        Raises:
            SlipwayError: on every rank, if a checkpoint cannot hold the state.
        """
        if not self._has_reserved:
            self._has_reserved, before = True, self._enter(SAVED)
            if self._shards:
                checkpoint = self._capture_sharded(Header(self.position))
                self._shards.reserve(checkpoint.tensors)
                self._recorder.run(lambda root: root.reserve(checkpoint))
            else:
                self._recorder.run(lambda root: root.reserve(self._program.capture(Header(self.position))))
            self._enter(before)

    def _save(self) -> None:
        """Save in the background, at the largest step of any rank."""
        began, before = time.monotonic(), self._enter(SAVED)
        metric = self._metric or (self._saved_metric if self.step == self._saved_step else None)
        self._settle()
        header = Header(self.position._replace(step=self._max_step), metric, self._program.facts())
        root = self._recorder.on_root
        try:
            if self._shards:
                self._write_sharded(self._shards, self._capture_sharded(header))
            elif root:
                root.save(self._program.capture(header))
        except SlipwayError as error:  # of state that the script has changed since the first checkpoint
            if isinstance(error, LostFolderError):
                raise
            if root:
                root.report_not_saved(error, step=self._max_step)
        if root:
            root.clock.write(self._max_step)
        self._enter(before)
        self._metric, self._saved_metric = None, metric
        self._has_reserved = True
        self._saved_step, self._saved_at = self.step, time.monotonic()
        self._save_seconds += self._saved_at - began

    def _capture_sharded(self, header: Header) -> Checkpoint:
        """Return this rank's checkpoint.

        Raises:
            SlipwayError: on every rank, if a checkpoint cannot hold the state of one of them.
        """
        failure: SlipwayError | None = None
        checkpoint: Checkpoint | None = None
        try:
            checkpoint = self._program.capture(header)
        except SlipwayError as error:
            failure = error
        raise_on_all_ranks(self._comm, failure)
        assert checkpoint
        return checkpoint

    def _write_sharded(self, shards: ShardWriter, checkpoint: Checkpoint) -> None:
        """Write this rank's part of a checkpoint in the background; ``_settle`` publishes the checkpoint."""
        ranks = self._comm.world.size
        folder = self._recorder.run(lambda root: root.begin_sharded(checkpoint, ranks))
        shards.write(checkpoint.tensors, Path(broadcast_json(self._comm, str(folder))))
        if root := self._recorder.on_root:
            root.save_sharded(checkpoint)

    def _settle(self) -> None:
        """Let rank 0 publish the last checkpoint if its shards are not published yet; wait until they are written."""
        if self._shards and self._shards.is_pending:
            reports = gather_bytes(self._comm, json.dumps(self._shards.report()).encode())
            if root := self._recorder.on_root:
                root.settle([json.loads(report) for report in reports])

    def _stop(self) -> None:
        reason = self.reason
        if broadcast_json(self._comm, self._max_step > self.start.step or bool(self._metric)):
            self._save()
        self._end(reason)
        self.stopped = Stopped(self._environment.exit_code(reason, ranks=self._comm.world.size), reason)
        raise self.stopped

    def _end(self, reason: Reason) -> None:
        self._settle()

        def end(recorder: Recorder) -> None:
            recorder.clock.enter(SAVED)
            recorder.finish()
            recorder.clock.enter(EVALUATED)
            if not reason:
                self._program.write_results()
            self._program.ended(recorder.conclude(reason, step=self._max_step))

        self._recorder.run(end)
        startup_time.restart()

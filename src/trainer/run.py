"""A whole run, from a configuration to a trained model: build, resume, train epoch by epoch, report."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from slipway.agreement import Agreement
from slipway.attempt import Ownership, open_folder
from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.header import Header
from slipway.checkpoint.store import CheckpointStore, find_checkpoint
from slipway.communicator import Communicator
from slipway.communicator.collectives import RootOnly, run_on_root
from slipway.environment import Environment
from slipway.layout import TENSORBOARD
from slipway.metrics import MetricWriter, Record, TensorBoard
from slipway.position import Position
from slipway.recorder import Recorder
from slipway.runfolder import RunFolder
from slipway.stop import Reason, StopRequest
from slipway.world import World
from trainer.checkpoint import capture, check_resumable, restore
from trainer.config import Settings
from trainer.data.feed import recorded
from trainer.data.loader import Batch
from trainer.dry_run import temporary_folder
from trainer.errors import describe
from trainer.evaluation import Evaluation, evaluate
from trainer.learner import Learner
from trainer.loop import train_epoch
from trainer.monitor import Monitor
from trainer.parts import Parts, build_parts
from trainer.provenance import begin
from trainer.report.progress import Progress
from trainer.report.summary import log_end, write_results
from trainer.strategies import Strategy, resolved
from trainer.threads import set_threads

log = logging.getLogger(__name__)


def run(
    settings: Settings, comm: Communicator, strategy: Strategy, request: StopRequest, environment: Environment
) -> Reason:
    """Train as ``settings`` say, on all ranks; return why that stopped early, NONE if it is done.

    Raises:
        SlipwayError: on every rank, if training cannot go on.
    """
    launch = settings.launch
    folder = RunFolder(Path(launch.output_dir or ""))
    set_threads(launch.threads, comm, environment)
    if launch.self_test:
        from trainer.selftest import self_test  # noqa: PLC0415 -- of no use to a run that trains

        return self_test(settings, comm, strategy, folder, environment)
    if not launch.dry_run:
        return _train(settings, comm, strategy, request, environment, folder=folder, resume_from=folder.checkpoints)
    with temporary_folder(folder, comm, environment, may_continue=bool(launch.resume)) as temporary:
        reason = _train(
            settings, comm, strategy, request, environment, folder=temporary, resume_from=folder.checkpoints
        )
    log.info("dry run: all parts work; nothing of it is kept")
    return reason


def _train(
    settings: Settings,
    comm: Communicator,
    strategy: Strategy,
    request: StopRequest,
    environment: Environment,
    *,
    folder: RunFolder,
    resume_from: Path,
) -> Reason:
    """Train in ``folder``, on from what is in ``resume_from``, and return why that stopped early."""
    launch = settings.launch
    with open_folder(folder, environment, comm, describe, may_continue=bool(launch.resume)) as ownership:
        parts = build_parts(settings, comm, strategy)
        found = _resume(parts.learner, settings, comm, resume_from)
        launched = resolved(launch, comm, strategy)
        recorder = ownership.make(lambda owned: _begin(owned, settings, comm.world, launched, found.position.step))
        progress = Progress(
            epochs=settings.train.epochs, samples_per_epoch=len(parts.train_set), shown=comm.world.is_root
        )
        monitor = Monitor(
            settings,
            parts.learner,
            Agreement(comm, request, recorder.on_root.attempt.stop_request if recorder.on_root else None),
            samples_per_epoch=len(parts.train_set),
            record=recorder.on_root.write if recorder.on_root else _nowhere,
            progress=progress,
        )
        training = Training(settings, comm, folder, parts, recorder, monitor, progress, found)
        try:
            return training.run()
        finally:
            if recorder.on_root:
                recorder.on_root.wait()  # while the lock of the folder is still ours


def _begin(owned: Ownership, settings: Settings, world: World, launched: Mapping[str, object], step: int) -> Recorder:
    """Begin an attempt at ``step``, and return what records it; rank 0 alone calls this."""
    trackers: list[MetricWriter] = []
    if settings.run.tensorboard:
        trackers.append(TensorBoard(owned.folder.path / TENSORBOARD, step=step))
    attempt = begin(owned, settings, world, launched, step=step)
    return Recorder(attempt, keep=settings.run.keep, step=step, trackers=trackers)


def _nowhere(_record: Record) -> None:
    """Take a record on a rank that writes none."""


def _resume(learner: Learner, settings: Settings, comm: Communicator, checkpoints: Path) -> Header:
    """Bring ``learner`` to where --resume says, and return what is known of that; all ranks must call this."""
    launch = settings.launch

    def find() -> Checkpoint | None:
        store = CheckpointStore(checkpoints, keep=settings.run.keep)
        found = find_checkpoint(launch.resume, store, repair=not launch.dry_run)
        if found:
            check_resumable(found, settings, learner)
        return found

    return restore(learner, run_on_root(comm, find))


class Training:
    """Training under way: what is done in which order, epoch by epoch."""

    def __init__(  # noqa: PLR0917 -- one argument for each of its parts
        self,
        settings: Settings,
        comm: Communicator,
        folder: RunFolder,
        parts: Parts,
        recorder: RootOnly[Recorder],
        monitor: Monitor,
        progress: Progress,
        found: Header,
    ) -> None:
        """Go on from what was ``found``."""
        self.settings, self.comm, self.folder = settings, comm, folder
        self.parts, self.learner = parts, parts.learner
        self.recorder, self.monitor, self.progress = recorder, monitor, progress
        self.start = self.position = found.position
        self.evaluated = found.metric is not None
        """Whether an evaluation at ``start`` has been recorded."""
        self.evaluation: Evaluation | None = None

    def run(self) -> Reason:
        """Train to the end, or until all ranks agree to stop."""
        self._announce()
        reason = Reason.NONE
        while not reason and not self._finished():
            reason, self.position = train_epoch(
                self.learner, self._batches(), self.position, monitor=self.monitor, save=self._save
            )
            if not reason:
                self._end_epoch()
        if reason and self.position.step > self.start.step:
            self._save(self.position)
        if not reason and self.evaluation is None:  # no step was left
            if self.evaluated:
                self.evaluation = self._evaluate()
            else:  # the last attempt stopped behind the last step
                self._end_epoch()
        self.progress.close()
        self.recorder.run(lambda recorder: self._conclude(recorder, reason))
        return reason

    def _announce(self) -> None:
        log.info(
            "%d rank(s) on %s: %s on %s, %d training and %d validation samples, %d a step; run folder %s",
            self.comm.world.size,
            self.comm.device.type,
            self.settings.model.arch,
            self.settings.data.dataset,
            len(self.parts.train_set),
            len(self.parts.validation_set),
            self.parts.feed.batch_size,
            self.folder.path,
        )
        if self.start.step:
            log.info("resumed at step %d, in epoch %d", self.start.step, self.position.epoch + 1)
        self.progress.start(self.position)

    def _steps_left(self) -> int | None:
        """Return how many optimiser steps may still be taken; None if there is no limit."""
        if self.settings.launch.dry_run:
            return max(0, self.start.step + 1 - self.position.step)
        limit = self.settings.train.max_steps
        return max(0, limit - self.position.step) if limit else None

    def _finished(self) -> bool:
        return self.position.epoch >= self.settings.train.epochs or self._steps_left() == 0

    def _batches(self) -> Iterator[Batch]:
        position = self.position
        batches = self.parts.feed.batches(epoch=position.epoch, start=position.samples, steps=self._steps_left())
        # A dry run's folder is known to rank 0 alone.
        if self.settings.run.record_samples and not self.settings.launch.dry_run:
            path = self.folder.logs / f"samples.rank{self.comm.world.rank}.jsonl"
            batches = recorded(batches, path, position=position)
        return batches

    def _evaluate(self) -> Evaluation:
        train, samples = self.settings.train, len(self.parts.validation_set)
        limit = train.val_batch_size if self.settings.launch.dry_run else samples
        return evaluate(
            self.learner, self.parts.validation_loader, batch_size=train.val_batch_size, limit=min(limit, samples)
        )

    def _end_epoch(self) -> None:
        """Evaluate, move on to the next epoch if this one is complete, and save."""
        position, result = self.position, self._evaluate()
        self.evaluation = result
        self.monitor.evaluated(position, result)
        if position.samples == len(self.parts.train_set):
            self.position = position.next_epoch()
        self._save(self.position, accuracy=result.accuracy)

    def _save(self, position: Position, *, accuracy: float | None = None) -> None:
        """Save the learner as it stands at ``position``, in the background."""
        self.learner.require_finite()
        if self.recorder.on_root:
            self.recorder.on_root.save(capture(self.learner, position, self.settings, accuracy=accuracy))

    def _conclude(self, recorder: Recorder, reason: Reason) -> None:
        settings, size = self.settings, self.comm.world.size
        title = f"{settings.model.arch} on {settings.data.dataset}, {size} rank(s)"
        recorder.finish()
        if self.evaluation and not reason:
            classes, figures = self.parts.validation_set.classes, settings.run.figures
            write_results(self.folder, self.evaluation, classes, title=title, figures=figures)
        status = recorder.conclude(reason, step=self.position.step)
        log_end(
            status,
            self.folder,
            evaluation=self.evaluation,
            samples=self.monitor.samples,
            seconds=self.position.elapsed - self.start.elapsed,
            ranks=size,
        )

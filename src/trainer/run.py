"""A whole run, from a configuration to a trained model: build, resume, train epoch by epoch, report."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slipway.agreement import Agreement
from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.saver import Saver
from slipway.checkpoint.store import CheckpointStore, find_checkpoint
from slipway.communicator import Communicator
from slipway.communicator.sharing import on_root
from slipway.position import Position
from slipway.stop import Reason, StopRequest
from trainer.checkpoint import capture, check_resumable, restore
from trainer.config import Settings
from trainer.data import fetch_data, open_data
from trainer.data.feed import Feed, recorded
from trainer.data.loader import Batch, Loader
from trainer.dry_run import temporary_folder
from trainer.evaluation import Evaluation, evaluate
from trainer.learner import Learner
from trainer.loop import train_epoch
from trainer.monitor import Monitor
from trainer.report.metrics import JsonLines, MetricWriter, Tee, TensorBoard
from trainer.report.progress import Progress
from trainer.report.summary import log_end, write_results
from trainer.runfolder import RunFolder, State, Status
from trainer.strategies import Strategy, resolved
from trainer.threads import set_threads

log = logging.getLogger(__name__)


def run(settings: Settings, ranks: Communicator, strategy: Strategy, request: StopRequest) -> Status:
    """Train as ``settings`` say, on all ranks, and return what became of it.

    Raises:
        TrainerError: on every rank, if training cannot go on.
    """
    folder = RunFolder(Path(settings.launch.output_dir or ""))
    parts = settings, ranks, strategy, request
    if not settings.launch.dry_run:
        return _attempt(folder, folder.checkpoints, *parts)
    with _failure_recorded(folder, ranks):
        with temporary_folder(folder, settings.launch, ranks) as temporary:
            status = _attempt(temporary, folder.checkpoints, *parts)
        on_root(ranks, lambda: folder.answer_job_script(status))
    log.info("dry run: all parts work; nothing of it is kept")
    return status


def _attempt(  # noqa: PLR0917 -- two folders, and all that a run is made of
    folder: RunFolder,
    checkpoints: Path,
    settings: Settings,
    ranks: Communicator,
    strategy: Strategy,
    request: StopRequest,
) -> Status:
    """Train in ``folder``, on from what is in ``checkpoints``, and return what became of it."""
    with _failure_recorded(folder, ranks):
        on_root(ranks, lambda: folder.open(settings.launch))
        if settings.launch.self_test:
            from trainer.doctor import examine  # noqa: PLC0415 -- of no use to a run that trains

            return examine(settings, ranks, strategy, folder)
        run = Run(settings, ranks, strategy, folder, request, resume_from=checkpoints)
        try:
            return run.train()
        finally:
            run.finish_writing()  # while the lock of the folder is still ours


@contextmanager
def _failure_recorded(folder: RunFolder, ranks: Communicator) -> Iterator[None]:
    """Let rank 0 record an error in ``folder``."""
    try:
        yield
    except BaseException as error:
        if ranks.world.rank == 0:
            folder.fail(error)
        raise


class Run:
    """The parts of one run, and the order in which they act."""

    def __init__(
        self,
        settings: Settings,
        ranks: Communicator,
        strategy: Strategy,
        folder: RunFolder,
        request: StopRequest,
        *,
        resume_from: Path,
    ) -> None:
        """Build everything, and resume where --resume says so; ``resume_from``: where auto looks."""
        self.settings, self.ranks, self.strategy, self.folder = settings, ranks, strategy, folder
        self.is_root = ranks.world.rank == 0
        set_threads(settings.launch.threads, ranks)
        if settings.data.download:  # by one rank; the others then find it
            on_root(ranks, lambda: fetch_data(settings.data))
        self.train_set, self.test_set = open_data(replace(settings.data, download=False))
        pin_memory = ranks.device.type == "cuda"
        self.feed = Feed(self.train_set, settings, ranks.world, pin_memory=pin_memory, warn=log.warning)
        self.test_loader = Loader(self.test_set, workers=settings.data.workers, pin_memory=pin_memory, warn=log.warning)
        self.learner = Learner(
            settings,
            ranks,
            strategy,
            shape=self.train_set.shape,
            classes=len(self.train_set.classes),
            mean_std=self.train_set.mean_std,
            samples_per_epoch=len(self.train_set),
        )
        store = CheckpointStore(folder.checkpoints, keep=settings.run.keep)
        self.saver = Saver(store) if self.is_root else None
        self.position = self._resume(CheckpointStore(resume_from, keep=settings.run.keep))
        self.start_step = self.position.step
        self.start_elapsed = self.position.elapsed
        self.evaluation: Evaluation | None = None
        self.metrics = Tee(on_root(ranks, lambda: list(self._metric_writers())) or [])
        self.progress = Progress(
            epochs=settings.train.epochs, samples_per_epoch=len(self.train_set), shown=self.is_root
        )
        self.monitor = Monitor(
            settings,
            self.learner,
            Agreement(ranks, request, folder.stop_request),
            samples_per_epoch=len(self.train_set),
            metrics=self.metrics,
            progress=self.progress,
        )

    def _resume(self, store: CheckpointStore) -> Position:
        def find() -> Checkpoint | None:
            launch = self.settings.launch
            found = find_checkpoint(launch.resume, store, repair=not launch.dry_run)
            if found:
                check_resumable(found, self.settings, self.learner)
            self.folder.record(self.settings, self.ranks.world, resolved(launch, self.ranks, self.strategy))
            return found

        position = restore(self.learner, on_root(self.ranks, find))
        on_root(self.ranks, self.folder.clear_stop_request)  # now that all ranks have resumed
        return position

    def _metric_writers(self) -> Iterator[MetricWriter]:
        yield JsonLines(self.folder.metrics, step=self.start_step)
        if self.settings.run.tensorboard:
            yield TensorBoard(self.folder.path / "tensorboard", step=self.start_step)

    def train(self) -> Status:
        """Train to the end, or until all ranks agree to stop."""
        self._announce()
        reason = Reason.NONE
        while not reason and not self._finished():
            reason, self.position = train_epoch(
                self.learner, self._batches(), self.position, monitor=self.monitor, save=self._save
            )
            if not reason:
                self._end_epoch()
        if reason and self.position.step > self.start_step:
            self._save(self.position)
        if not reason and self.evaluation is None:  # it had been finished before
            self.evaluation = self._evaluate()
        self.progress.close()
        status = self._status("stopped" if reason else "done", reason)
        on_root(self.ranks, lambda: self._conclude(status))
        return status

    def finish_writing(self) -> None:
        """Wait for the checkpoint that is being written, if any."""
        if self.saver:
            self.saver.wait()

    def _announce(self) -> None:
        log.info(
            "%d rank(s) on %s: %s on %s, %d training and %d test samples, %d a step; run folder %s",
            self.ranks.world.size,
            self.ranks.device.type,
            self.settings.model.arch,
            self.settings.data.dataset,
            len(self.train_set),
            len(self.test_set),
            self.feed.batch_size,
            self.folder.path,
        )
        if self.start_step:
            log.info("resumed at step %d, in epoch %d", self.start_step, self.position.epoch + 1)
        on_root(self.ranks, lambda: self.folder.write_status(self._status("running")))
        self.progress.start(self.position)

    def _steps_left(self) -> int | None:
        """Return how many optimiser steps may still be taken; None if there is no limit."""
        if self.settings.launch.dry_run:
            return max(0, self.start_step + 1 - self.position.step)
        limit = self.settings.train.max_steps
        return max(0, limit - self.position.step) if limit else None

    def _finished(self) -> bool:
        return self.position.epoch >= self.settings.train.epochs or self._steps_left() == 0

    def _batches(self) -> Iterator[Batch]:
        position = self.position
        batches = self.feed.batches(epoch=position.epoch, start=position.samples, steps=self._steps_left())
        # A dry run's folder is known to rank 0 alone.
        if self.settings.run.record_samples and not self.settings.launch.dry_run:
            path = self.folder.logs / f"samples.rank{self.ranks.world.rank}.jsonl"
            batches = recorded(batches, path, position=position)
        return batches

    def _evaluate(self) -> Evaluation:
        train = self.settings.train
        limit = train.test_batch_size if self.settings.launch.dry_run else len(self.test_set)
        return evaluate(
            self.learner,
            self.test_loader,
            batch_size=train.test_batch_size,
            limit=min(limit, len(self.test_set)),
        )

    def _end_epoch(self) -> None:
        """Evaluate, move on to the next epoch if this one is complete, and save."""
        position, result = self.position, self._evaluate()
        self.evaluation = result
        self.metrics.write(
            {
                "kind": "test",
                "step": position.step,
                "epoch": position.epoch + position.samples / len(self.train_set),
                "elapsed": position.elapsed,
                "loss": result.loss,
                "accuracy": result.accuracy,
                "top5": result.top5,
            }
        )
        self.progress.end_epoch(position, loss=result.loss, accuracy=result.accuracy)
        if position.samples == len(self.train_set):
            self.position = position.next_epoch()
        self._save(self.position, accuracy=result.accuracy)

    def _save(self, position: Position, *, accuracy: float | None = None) -> None:
        """Save the learner as it stands at ``position``, in the background."""
        self.learner.require_finite()
        if self.saver:
            self.folder.check()
            self.saver.save(capture(self.learner, position, self.settings, accuracy=accuracy))

    def _status(self, state: State, reason: Reason = Reason.NONE) -> Status:
        gained = self.position.step > self.start_step
        return Status(
            attempt=self.folder.attempt,
            state=state,
            reason=reason.word if reason else "",
            start_step=self.start_step,
            step=self.position.step,
            requeue=gained and reason == Reason.TIME_LIMIT,
        )

    def _conclude(self, status: Status) -> None:
        """Make everything durable, and only then say what became of the run."""
        if self.saver:
            self.saver.finish()
        self.metrics.close()
        if status.state == "done" and self.evaluation:
            title = f"{self.settings.model.arch} on {self.settings.data.dataset}, {self.ranks.world.size} rank(s)"
            figures = self.settings.run.figures
            write_results(self.folder, self.evaluation, self.test_set.classes, title=title, figures=figures)
        self.folder.conclude(status)
        log_end(
            status,
            self.folder,
            evaluation=self.evaluation,
            samples=self.monitor.samples,
            seconds=self.position.elapsed - self.start_elapsed,
            ranks=self.ranks.world.size,
        )

"""Training loop: train, evaluate and save, epoch by epoch."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator

from slipway.base.stop import Reason
from slipway.checkpoint.header import Metric
from slipway.run.run import Run
from slipway.run.run_folder import RunFolder
from trainer.build import Parts
from trainer.config.settings import Settings
from trainer.data.loader import Batch, by_step
from trainer.data.training_batches import recorded
from trainer.engine.evaluation import Evaluation, evaluate
from trainer.engine.learner import Learner
from trainer.engine.profiler import Profiler
from trainer.trainer_program import TrainerProgram

log = logging.getLogger(__name__)


class Training:
    """Training loop over epochs: train, evaluate, save."""

    def __init__(
        self,
        settings: Settings,
        folder: RunFolder,
        *,
        parts: Parts,
        program: TrainerProgram,
        run: Run,
        evaluated: bool,
        profiler: Profiler | None,
    ) -> None:
        """Prepare to train from the position of ``run``; ``evaluated``: an evaluation was made there."""
        self.settings, self.folder, self.world = settings, folder, parts.learner.comm.world
        self.parts, self.learner, self.program, self.run = parts, parts.learner, program, run
        self.evaluated, self.profiler = evaluated, profiler

    def train(self) -> Reason:
        """Train to the end.

        Raises:
            Stopped: if all ranks agree to stop early; everything is saved by then.
        """
        self._announce()
        while not self._finished():
            self.run.start_clock()
            train_epoch(
                self.learner,
                self._batches(),
                self.run,
                samples=len(self.parts.train_set),
                verify_interval=self.settings.run.verify_replicas,
            )
            self._end_epoch()
        if self.program.evaluation is None:  # no steps remained
            if self.evaluated:
                self.program.evaluation = self._evaluate()
            else:  # the previous attempt stopped after the last step, before the evaluation
                self._end_epoch()
        self.program.require_decodable_validation()
        self.run.save_unsaved()
        self.run.conclude()
        epoch, epochs = self.run.position.epoch, self.settings.train.epochs
        if epoch < epochs and self._steps_left() != 0:
            log.info("stopped after epoch %d of %d because of --stop-epoch", epoch, epochs)
        return Reason.NONE

    def _announce(self) -> None:
        log.info(
            "%d rank(s) on %s: %s on %s, %d training and %d validation samples, %d per step; run folder %s",
            self.world.size,
            self.learner.comm.device.type,
            self.settings.model.arch,
            self.settings.data.dataset,
            len(self.parts.train_set),
            len(self.parts.validation_set),
            self.parts.training_batches.batch_size,
            self.folder.path,
        )
        if self.run.start.step:
            log.info("resumed at step %d, in epoch %d", self.run.start.step, self.run.start.epoch + 1)
        self.program.progress.start(self.run.start)

    def _steps_left(self) -> int | None:
        """Return the number of remaining optimizer steps; None if there is no limit."""
        if self.settings.launch.dry_run:
            return max(0, self.run.start.step + 1 - self.run.position.step)
        limit = self.settings.train.max_steps
        return max(0, limit - self.run.position.step) if limit else None

    def _finished(self) -> bool:
        epochs, stop = self.settings.train.epochs, self.settings.launch.stop_epoch
        return self.run.position.epoch >= min(epochs, stop or epochs) or self._steps_left() == 0

    def _batches(self) -> Iterator[Batch]:
        position = self.run.position
        batches = self.parts.training_batches.of_epoch(
            epoch=position.epoch, start=position.samples, steps=self._steps_left()
        )
        # Only rank 0 has the path of a dry run's folder.
        if self.settings.run.record_samples and not self.settings.launch.dry_run:
            path = self.folder.logs / f"samples.rank{self.world.rank}.jsonl"
            batches = recorded(batches, path, position=position)
        return self.profiler.watch(batches) if self.profiler else batches

    def _evaluate(self) -> Evaluation:
        train, samples = self.settings.train, len(self.parts.validation_set)
        limit = train.val_batch_size if self.settings.launch.dry_run else samples
        return evaluate(
            self.learner,
            self.parts.validation_loader,
            batch_size=train.val_batch_size,
            limit=min(limit, samples),
            watch=lambda batches, most: self.run.watch(batches, most=most),
        )

    def _end_epoch(self) -> None:
        """Evaluate, advance to the next epoch if this one is complete, and save."""
        began = time.monotonic()
        result = self._evaluate()
        self.run.write(self.program.evaluated(self.run.position, result, seconds=time.monotonic() - began))
        self.run.set_metric(Metric("accuracy", result.accuracy))
        if self.run.position.samples == len(self.parts.train_set):
            self.run.position = self.run.position.next_epoch()
        self.run.end_epoch(last=self._finished())
        self.program.require_decodable_validation()  # only after everything is saved


def train_epoch(
    learner: Learner, batches: Iterable[Batch], run: Run, *, samples: int, verify_interval: int | None
) -> None:
    """Train on ``batches``, the remaining batches of an epoch.

    Args:
        learner: the learner to train.
        batches: this rank's micro-batches.
        run: the run that counts the steps.
        samples: the number of samples in an epoch, over all ranks.
        verify_interval: steps between two comparisons of the replicas; None: never compare.

    Raises:
        Stopped: if all ranks agree to stop; everything is saved by then.
    """
    for plan, micro_batches in by_step(batches):
        learner.start_step(run.position, step_samples=plan.step_samples)
        learner.backward(micro_batches, count=plan.total)
        learner.step()
        if verify_interval and (run.step + 1) % verify_interval == 0:
            learner.require_equal_replicas()
        is_last = run.samples + plan.step_samples == samples
        (run.count if is_last else run.advance)(plan.step_samples)
    run.end_batches()

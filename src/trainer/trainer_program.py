"""Program that the trainer gives to Run: counters, records, checkpoints and final results."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from slipway.base.contract import PROFILE
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.run.metrics import Record
from slipway.run.program import Speed
from slipway.run.run_folder import RunFolder
from slipway.run.status import Status
from trainer.build import Parts
from trainer.config.errors import TrainerError
from trainer.config.settings import Settings
from trainer.engine.checkpoint import IMAGES, capture, facts, image_facts
from trainer.engine.evaluation import Evaluation
from trainer.engine.profiler import START, profiled_ranks, write_start
from trainer.results.progress import Progress
from trainer.results.summary import log_end, write_results


class TrainerProgram:
    """The trainer's implementation of slipway.run.program.Program."""

    def __init__(self, settings: Settings, folder: RunFolder, parts: Parts, *, start: Position) -> None:
        """Prepare to train ``parts`` from ``start``."""
        self._settings, self._folder = settings, folder
        self._parts, self._learner, self._world = parts, parts.learner, parts.learner.comm.world
        self._samples_per_epoch = len(parts.train_set)
        self.progress = Progress(
            epochs=settings.train.epochs, samples_per_epoch=self._samples_per_epoch, shown=self._world.is_root
        )
        self.evaluation: Evaluation | None = None
        """The last evaluation of this attempt."""
        self._start = self._recorded = self._position = start
        self._loss = self._data_seconds = 0.0
        self._samples = self._recorded_samples = 0
        known = facts(self._learner, settings)
        self._facts = known | {IMAGES: image_facts(parts.train_set)}

    def local_counters(self) -> list[float]:
        """Return this rank's counters since the last call: summed loss, bad images, seconds spent waiting for data."""
        loss, self._learner.loss_sum = self._learner.loss_sum, torch.zeros_like(self._learner.loss_sum)
        bad, self._learner.bad = self._learner.bad, 0
        return [loss.item(), bad, self._parts.training_batches.waits.take()]

    def on_reduced(self, position: Position, sums: list[float]) -> Position:
        """Process the counters summed over all ranks and return the updated position.

        Raises:
            TrainerError: on every rank, if the loss is not finite or too many images are bad.
        """
        loss, bad, data_seconds = sums
        position = position.with_added(bad=int(bad), seconds=0)
        if not math.isfinite(loss):
            raise TrainerError(
                "diverged",
                f"the loss is {loss} at step {position.step}: training diverged. No diverged state was saved; resume "
                "with a lower --lr, with --clip-grad, or with --amp none.",
            )
        self._check_bad_images(position.bad, f"{position.samples} images read in this epoch", self._samples_per_epoch)
        self._loss += loss
        self._data_seconds += data_seconds / self._world.size
        epochs = position.epoch - self._position.epoch
        self._samples += epochs * self._samples_per_epoch + position.samples - self._position.samples
        self._position = position
        return position

    def require_decodable_validation(self) -> None:
        """Raise a TrainerError, on every rank, if too many images of the last evaluation are bad."""
        if self.evaluation:
            samples = len(self._parts.validation_set)
            self._check_bad_images(self.evaluation.bad, f"{samples} validation images", samples)

    def _check_bad_images(self, bad: int, of: str, samples: int) -> None:
        share = self._settings.data.bad_image_share
        if bad > share * samples:
            raise TrainerError(
                "too-many-bad-images",
                f"{bad} of {of} cannot be decoded (paths above), more than bad_image_share={share} of the set: fix the "
                "data or raise --bad-image-share.",
                raised_on_all_ranks=True,
            )

    def sync_step(self, step: int) -> int:
        """Return ``step`` unchanged: all ranks are always at the same step."""
        return step

    def record(self, position: Position, speed: Speed) -> Record:
        """Show loss and speed since the last record, and return them as a record."""
        samples = self._samples - self._recorded_samples
        rate = samples / max(position.elapsed - self._recorded.elapsed, 1e-9)
        loss, data_seconds = self._loss / samples, self._data_seconds
        self._recorded, self._recorded_samples = position, self._samples
        self._loss = self._data_seconds = 0.0
        self.progress.step(position, loss=loss, rate=rate)
        return {
            "kind": "train",
            **self._place(position),
            "loss": loss,
            "lr": self._learner.rate,
            "samples_per_second": rate,
            "data_seconds": data_seconds,
            "save_seconds": speed.save_seconds,
        }

    def evaluated(self, position: Position, result: Evaluation, *, seconds: float) -> Record:
        """Store and show the evaluation at ``position``, which took ``seconds``, and return its record."""
        self.evaluation = result
        self.progress.end_epoch(position, loss=result.loss, accuracy=result.accuracy)
        return {
            "kind": "validation",
            **self._place(position),
            "loss": result.loss,
            "accuracy": result.accuracy,
            "top5": result.top5,
            "evaluation_seconds": seconds,
        }

    def facts(self) -> dict[str, Any]:
        """Return the facts about the run that a checkpoint stores.

        Raises:
            TrainerError: on every rank, if a weight is not finite or the replicas differ.
        """
        self._learner.require_finite()
        if self._settings.run.verify_replicas:
            self._learner.require_equal_replicas()
        return self._facts

    def capture(self, header: Header) -> Checkpoint:
        """Return a checkpoint of the learner."""
        return capture(self._learner, header)

    def started(self, parts: Mapping[str, float]) -> None:
        """Write and log the startup time by part if --profile is start."""
        launch, world = self._settings.launch, self._world
        if launch.profile == START and world.rank in profiled_ranks(launch.profile_ranks, world):
            write_start(parts, self._folder.path / PROFILE, rank=world.rank)

    def write_results(self) -> None:
        """Write the tables and figures of the last evaluation."""
        if self.evaluation is None:
            return
        model, data = self._settings.model, self._settings.data
        write_results(
            self._folder,
            self.evaluation,
            self._parts.validation_set,
            title=f"{model.arch} on {data.dataset}, {self._world.size} rank(s)",
            figures=self._settings.run.figures,
            learner=self._learner,
        )

    def ended(self, status: Status) -> None:
        """Close the progress bar and log the run's final state."""
        self.progress.close()
        log_end(
            status,
            self._folder,
            evaluation=self.evaluation,
            samples=self._samples,
            seconds=self._position.elapsed - self._start.elapsed,
            ranks=self._world.size,
            kept=not self._settings.launch.dry_run,
        )

    def _place(self, position: Position) -> Record:
        epoch = position.epoch + position.samples / self._samples_per_epoch
        return {"step": position.step, "epoch": epoch, "elapsed": position.elapsed}

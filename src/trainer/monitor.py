"""What the ranks find out together while they train: by one small sum now and then, never one a step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch

from slipway.agreement import Agreement
from slipway.metrics import Record
from slipway.position import Position
from slipway.schedule import Schedule
from slipway.stop import Reason
from trainer.config import Config
from trainer.errors import TrainerError
from trainer.evaluation import Evaluation
from trainer.learner import Learner
from trainer.report.progress import Progress


class Meter:
    """Loss and speed since the last record."""

    def __init__(self) -> None:
        """Nothing has been measured yet."""
        self.seconds = self._loss = 0.0
        self.samples = 0

    def add(self, *, loss: float, samples: int, seconds: float) -> None:
        """Add the sum of the losses of ``samples``, over all ranks, that took ``seconds``."""
        self._loss += loss
        self.samples += samples
        self.seconds += seconds

    @property
    def loss(self) -> float:
        """Mean over the samples."""
        return self._loss / self.samples

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / max(self.seconds, 1e-9)


class Monitor:
    """Gathers loss, bad images and requests to stop over all ranks; stops what cannot go on, and writes the metrics."""

    def __init__(
        self,
        config: Config,
        learner: Learner,
        agreement: Agreement,
        *,
        samples_per_epoch: int,
        record: Callable[[Record], None],
        progress: Progress,
    ) -> None:
        """Watch ``learner``."""
        self._learner = learner
        self._agreement = agreement
        self._samples_per_epoch = samples_per_epoch
        self._record = record
        self._progress = progress
        self._bad_share = config.data.bad_image_share
        self._schedule = Schedule(
            log_interval=config.run.log_interval, checkpoint_interval=config.run.checkpoint_interval
        )
        self._last = Position()
        self._last_time = time.monotonic()
        self._window = Meter()
        self.samples = 0
        """Samples trained on in this attempt, over all ranks."""

    @property
    def next_step(self) -> int:
        """The step after which ``check`` is due."""
        return self._schedule.next_step

    def start(self, position: Position) -> None:
        """Begin to measure at ``position``: the start of an epoch, or the place resumed from."""
        self._last = position
        self._last_time = time.monotonic()
        self._schedule.plan(position.step)

    def checkpoint_due(self, position: Position) -> bool:
        """Whether a checkpoint within the epoch belongs here; at its end there comes one after the evaluation."""
        return position.samples < self._samples_per_epoch and self._schedule.checkpoint_due(position.step)

    def check(self, position: Position, bad: int) -> tuple[Reason, Position]:
        """Return the reason to stop on which the ranks agree, and ``position`` with what they observed together.

        Args:
            position: where this rank stands; every rank calls this at the same step.
            bad: images that this rank could not decode since the last call.

        Raises:
            TrainerError: on every rank, if the loss is not finite, or too many images are bad.
        """
        seconds, self._last_time = time.monotonic() - self._last_time, time.monotonic()
        loss = self._learner.loss[None]
        reason, totals = self._agreement.agree(torch.cat([loss, loss.new_tensor([bad, seconds])]))
        self._learner.loss.zero_()
        loss_sum, bad_sum, seconds_sum = totals
        seconds = seconds_sum / self._learner.comm.world.size
        position = position.with_observed(bad=int(bad_sum), seconds=seconds)
        self._require_sound(position, loss_sum)

        if steps := position.step - self._last.step:
            self._schedule.pace.observe(steps, seconds)
        gained = position.samples - self._last.samples
        self.samples += gained
        self._window.add(loss=loss_sum, samples=gained, seconds=seconds)
        self._last = position
        if self._schedule.log_due(position.step) and self._window.samples:
            self._write(position)
        self._schedule.plan(position.step)
        return reason, position

    def evaluated(self, position: Position, result: Evaluation) -> None:
        """Record what the evaluation at ``position`` has come to."""
        self._record(
            {
                "kind": "validation",
                "step": position.step,
                "epoch": position.epoch + position.samples / self._samples_per_epoch,
                "elapsed": position.elapsed,
                "loss": result.loss,
                "accuracy": result.accuracy,
                "top5": result.top5,
            }
        )
        self._progress.end_epoch(position, loss=result.loss, accuracy=result.accuracy)

    def _require_sound(self, position: Position, loss: float) -> None:
        if not math.isfinite(loss):
            raise TrainerError(
                f"the loss is {loss} at step {position.step}: training diverged. Nothing of it is saved; resume "
                "with a lower --lr, with --clip-grad, or with --amp none."
            )
        if position.bad > self._bad_share * self._samples_per_epoch:
            raise TrainerError(
                f"{position.bad} of {position.samples} images read in this epoch cannot be decoded (paths above), more "
                f"than bad_image_share={self._bad_share} of the set: fix the data, or raise --bad-image-share."
            )

    def _write(self, position: Position) -> None:
        self._record(
            {
                "kind": "train",
                "step": position.step,
                "epoch": position.epoch + position.samples / self._samples_per_epoch,
                "elapsed": position.elapsed,
                "loss": self._window.loss,
                "lr": self._learner.rate,
                "samples_per_second": self._window.rate,
            }
        )
        self._progress.step(position, loss=self._window.loss, rate=self._window.rate)
        self._window = Meter()

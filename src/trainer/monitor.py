"""What ranks tell each other while they train: one small sum now and then, never one a step."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import torch

from slipway.stop import Reason, StopRequest
from trainer.checkpoint.state import Position
from trainer.config import Config
from trainer.data.base import Dataset
from trainer.errors import TrainerError
from trainer.learner import Learner
from trainer.report.metrics import MetricWriter
from trainer.report.progress import Progress

log = logging.getLogger(__name__)

AGREE_EVERY = 0.5
"""Seconds between two agreements on whether to stop, roughly: the ranks count steps instead, so that all meet."""


class Monitor:
    """Gathers, over all ranks, the loss, bad images, and requests to stop; writes the metrics."""

    def __init__(
        self,
        config: Config,
        learner: Learner,
        dataset: Dataset,
        *,
        request: StopRequest,
        stop_file: Callable[[], Reason],
        metrics: MetricWriter,
        progress: Progress,
    ) -> None:
        """Watch ``learner``; ``stop_file`` is asked on rank 0 only."""
        self._learner = learner
        self._dataset = dataset
        self._request = request
        self._stop_file = stop_file
        self._metrics = metrics
        self._progress = progress
        self._log_interval = config.run.log_interval
        self._checkpoint_interval = config.run.checkpoint_interval
        self._bad_share = config.data.bad_image_share
        self._agree_interval = 1
        self._last_step = -1
        self._last_time = time.monotonic()
        self._window_time = self._window_loss = 0.0
        self._window_samples = self._samples_at_last = 0
        self.samples = 0
        """Samples trained on in this attempt, over all ranks."""
        self.next_step = 0
        """The step after which ``meet`` is due."""

    def start(self, position: Position) -> None:
        """Begin to measure at ``position``: the start of an epoch, or the place resumed from."""
        self._last_step, self._samples_at_last = position.step, position.samples
        self._last_time = time.monotonic()
        self._plan(position.step)

    def _plan(self, step: int) -> None:
        due = [step + self._agree_interval, _next_multiple(step, self._log_interval)]
        if self._checkpoint_interval:
            due.append(_next_multiple(step, self._checkpoint_interval))
        self.next_step = min(due)

    def checkpoint_due(self, position: Position) -> bool:
        """Whether a checkpoint within the epoch belongs here; at its end there comes one after the evaluation."""
        if not self._checkpoint_interval or position.samples == len(self._dataset):
            return False
        return position.step % self._checkpoint_interval == 0

    def meet(self, position: Position, bad: int) -> Reason:
        """Bring ``position`` up to date over all ranks and return the reason to stop on which they agree.

        Args:
            position: where this rank stands; every rank calls this at the same step.
            bad: images that this rank could not decode since the last meeting.

        Raises:
            TrainerError: if the loss is not finite, or too many images are bad.
        """
        steps = position.step - self._last_step
        seconds, self._last_time = time.monotonic() - self._last_time, time.monotonic()
        asked = self._request.reason
        if self._learner.ranks.world.rank == 0:
            asked = max(asked, self._stop_file())
        mine = [bad, seconds, *(float(asked == reason) for reason in Reason)]
        loss = self._learner.loss[None]
        told = self._learner.ranks.all_reduce_sum(torch.cat([loss, loss.new_tensor(mine)])).tolist()
        self._learner.loss.zero_()
        loss_sum, bad_sum, seconds_sum, *asked_by = told
        self._require_sound(position, loss_sum, bad_sum)

        seconds = seconds_sum / self._learner.ranks.world.size
        if steps:
            self._agree_interval = min(1000, max(1, int(steps * AGREE_EVERY / max(seconds, 1e-9))))
        position.elapsed += seconds
        position.bad += int(bad_sum)
        self._window_time += seconds
        self._window_loss += loss_sum
        gained = position.samples - self._samples_at_last
        self.samples += gained
        self._window_samples += gained
        self._samples_at_last, self._last_step = position.samples, position.step
        if position.step % self._log_interval == 0 and self._window_samples:
            self._write(position)
        self._plan(position.step)
        return Reason(max(reason for reason in Reason if reason == Reason.NONE or asked_by[reason]))

    def _require_sound(self, position: Position, loss_sum: float, bad_sum: float) -> None:
        if not math.isfinite(loss_sum):
            raise TrainerError(
                f"the loss is {loss_sum} at step {position.step}: training diverged. Nothing of it is saved; resume "
                "with a lower --lr, with --clip-grad, or with --amp none."
            )
        bad = position.bad + bad_sum
        if bad > self._bad_share * len(self._dataset):
            raise TrainerError(
                f"{bad:.0f} of {position.samples} images read in this epoch cannot be decoded (paths above), more than "
                f"bad_image_share={self._bad_share} of the set: fix the data, or raise --bad-image-share."
            )

    def _write(self, position: Position) -> None:
        rate = self._window_samples / max(self._window_time, 1e-9)
        self._metrics.write(
            {
                "kind": "train",
                "step": position.step,
                "epoch": position.epoch + position.samples / len(self._dataset),
                "elapsed": position.elapsed,
                "loss": self._window_loss / self._window_samples,
                "lr": self._learner.rate,
                "samples_per_second": rate,
            }
        )
        self._progress.step(position, loss=self._window_loss / self._window_samples, rate=rate)
        self._window_time = self._window_loss = 0.0
        self._window_samples = 0


def _next_multiple(step: int, interval: int) -> int:
    return (step // interval + 1) * interval

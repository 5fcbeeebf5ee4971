"""Progress display: a bar on a terminal, plain lines in a log."""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack

from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from slipway.checkpoint.header import Position

log = logging.getLogger(__name__)

PROGRESS_INTERVAL = 2.0
"""Minimum number of seconds between two lines in a log."""


class Progress:
    """Shows the progress of a run on rank 0."""

    def __init__(self, *, epochs: int, samples_per_epoch: int, shown: bool) -> None:
        """Prepare for a run of ``epochs``."""
        self._epochs = epochs
        self._samples = samples_per_epoch
        self._shown = shown
        self._bar: tqdm[None] | None = None
        self._last_line = 0.0
        self._on_close = ExitStack()

    def start(self, position: Position) -> None:
        """Show the bar, if this is a terminal."""
        if self._shown and sys.stderr.isatty():
            self._on_close.enter_context(logging_redirect_tqdm())  # print log lines above the bar
            self._bar = tqdm(
                total=self._epochs * self._samples,
                initial=self._consumed(position),
                unit=" samples",
                unit_scale=True,
                dynamic_ncols=True,
            )

    def step(self, position: Position, *, loss: float, rate: float) -> None:
        """Show the training loss and the rate, in samples/s over all ranks."""
        if self._bar is not None:
            self._bar.set_description(f"epoch {position.epoch + 1}/{self._epochs}", refresh=False)
            self._bar.set_postfix(loss=f"{loss:.4f}", refresh=False)
            self._bar.update(self._consumed(position) - self._bar.n)
        elif self._shown and time.monotonic() - self._last_line > PROGRESS_INTERVAL:
            self._last_line = time.monotonic()
            left = (self._epochs * self._samples - self._consumed(position)) / rate
            log.info(
                "epoch %d/%d  step %d  loss %.4f  %.0f samples/s  %s left",
                *(position.epoch + 1, self._epochs, position.step, loss, rate, tqdm.format_interval(left)),
            )

    def end_epoch(self, position: Position, *, loss: float, accuracy: float) -> None:
        """Log the validation loss and accuracy of the epoch that ended."""
        if self._bar is not None:
            self._bar.update(self._consumed(position) - self._bar.n)
        log.info(
            "epoch %d/%d  step %d  validation loss %.4f  accuracy %.2f %%",
            *(position.epoch + 1, self._epochs, position.step, loss, 100 * accuracy),
        )

    def close(self) -> None:
        """Close the bar and leave it on the screen."""
        if self._bar is not None:
            self._bar.close()
        self._on_close.close()

    def _consumed(self, position: Position) -> int:
        return position.epoch * self._samples + position.samples

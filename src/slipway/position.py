"""Where training stands: with the order that a seed gives each epoch, all that a resume needs to know of the data."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """A place in training, over all ranks. It does not change: Run counts the steps, and gives another one."""

    step: int = 0
    """Optimiser steps done."""
    epoch: int = 0
    """The epoch under way, counted from 0."""
    samples: int = 0
    """Samples of it consumed."""
    bad: int = 0
    """Samples among them that could not be read."""
    elapsed: float = 0.0
    """Seconds trained, over all attempts."""

    def with_observed(self, *, bad: int, seconds: float) -> Position:
        """Return the position with so many more bad samples and seconds."""
        return self._replace(bad=self.bad + bad, elapsed=self.elapsed + seconds)

    def next_epoch(self) -> Position:
        """Return the beginning of the next epoch."""
        return self._replace(epoch=self.epoch + 1, samples=0, bad=0)

"""What a session says while it is open: lines on standard error, where the script has set up no log of its own."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from slipway.base.environment import World
from slipway.run.metrics import Record

log = logging.getLogger("slipway")

LINE_EVERY = 10.0
"""Seconds between two lines of progress, at least."""


@contextlib.contextmanager
def shown_log(world: World) -> Iterator[None]:
    """Show what rank 0 says, and warnings of the others, unless the script's own log does."""
    handler = None
    level = log.level
    if not log.hasHandlers():
        handler = logging.StreamHandler()
        prefix = "slipway: " if world.is_root else f"slipway: [rank {world.rank}] "
        handler.setFormatter(logging.Formatter(prefix + "%(message)s"))
        log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.INFO if world.is_root else logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)
        if handler:
            log.removeHandler(handler)


class ProgressLine:
    """Says once in a while how far training is."""

    def __init__(self) -> None:
        """Say something with the first record."""
        self._next = 0.0
        self._first: tuple[float, float] | None = None

    def show(self, record: Record, *, rate: float, done: float) -> None:
        """Show the numbers of ``record``, of metrics.jsonl.

        Args:
            record: the numbers.
            rate: optimiser steps a second.
            done: part of all training that is done, from 0 to 1.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + LINE_EVERY
        shown = {key: value for key, value in record.items() if key not in {"kind", "elapsed", "steps_per_second"}}
        numbers = "  ".join(f"{key} {value:.5g}" for key, value in shown.items())
        log.info("%s  %.3g steps/s%s", numbers, rate, self._left(now, done))

    def _left(self, now: float, done: float) -> str:
        """Return how long training still takes, as it went since the first line."""
        then, before = self._first = self._first or (now, done)
        gained = done - before
        return f"  {_duration((1 - done) / gained * (now - then))} left" if gained > 0 else ""


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

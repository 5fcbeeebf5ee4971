"""Log output of an open session on standard error, if the script has not configured logging."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from slipway.base.environment import World
from slipway.run.metrics import Record

log = logging.getLogger("slipway")

PROGRESS_INTERVAL = 10.0
"""Minimum seconds between two progress lines."""


@contextlib.contextmanager
def console_log(world: World) -> Iterator[None]:
    """Print rank 0's log and other ranks' warnings, unless the script has configured logging."""
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
    """Periodic log line with the training progress."""

    def __init__(self) -> None:
        """Log a line with the first record."""
        self._next = 0.0
        self._first: tuple[float, float] | None = None

    def show(self, record: Record, *, rate: float, done: float) -> None:
        """Log the numbers of ``record``, unless the last line is less than PROGRESS_INTERVAL seconds old.

        Args:
            record: a record of metrics.jsonl.
            rate: optimizer steps per second.
            done: completed fraction of the training, 0 to 1.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + PROGRESS_INTERVAL
        shown = {key: value for key, value in record.items() if key not in {"kind", "elapsed", "steps_per_second"}}
        numbers = "  ".join(f"{key} {value:.5g}" for key, value in shown.items())
        log.info("%s  %.3g steps/s%s", numbers, rate, self._left(now, done))

    def _left(self, now: float, done: float) -> str:
        """Return the remaining time as text, estimated from the progress since the first line; "" if unknown."""
        then, before = self._first = self._first or (now, done)
        gained = done - before
        return f"  {_duration((1 - done) / gained * (now - then))} left" if gained > 0 else ""


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"

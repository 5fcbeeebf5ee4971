"""Clock on rank 0 that divides an attempt's time into the parts of goodput; see ``slipway.base.goodput``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from slipway.base.files import LineFile
from slipway.base.goodput import MEASURED, START, STARTED, TRAINED, WAITED
from slipway.base.startup_time import age_of_this_process


class Clock:
    """Time accounting of one attempt, from its start to its end; appends to goodput.jsonl."""

    def __init__(self, path: Path, *, attempt: int, step: int) -> None:
        """Start the clock of ``attempt`` at ``step``, in the part STARTED."""
        self._lines = LineFile(path)
        self._attempt = attempt
        self._seconds = dict.fromkeys(MEASURED, 0.0) | {STARTED: age_of_this_process()}
        self._part, self._since = STARTED, time.monotonic()
        self.write(step)

    def enter(self, part: str) -> str:
        """Charge time to ``part`` from now on, and return the previous part."""
        now, before = time.monotonic(), self._part
        self._seconds[before] += now - self._since
        self._part, self._since = part, now
        return before

    def waited(self, seconds: float) -> None:
        """Move ``seconds`` from TRAINED to WAITED: time spent waiting for data."""
        self._seconds[WAITED] += seconds
        self._seconds[TRAINED] -= seconds

    def write(self, step: int, *, concluded: bool = False) -> None:
        """Append a line with the seconds spent so far; ``step`` has been saved, or is about to be.

        Args:
            step: optimizer steps done in all attempts.
            concluded: whether the attempt has ended, done or stopped.
        """
        self.enter(self._part)
        spent = {name: round(seconds, 3) for name, seconds in self._seconds.items()}
        line = {"attempt": self._attempt, "time": round(time.time(), 3), "step": step, **spent}
        self._lines.append(json.dumps(line | ({"concluded": True} if concluded else {})))

    def write_start(self, parts: Mapping[str, float]) -> None:
        """Append a line with the seconds up to the first step, by part."""
        seconds = {name: round(value, 3) for name, value in parts.items()}
        self._lines.append(json.dumps({"attempt": self._attempt, START: seconds}))

    def close(self) -> None:
        """Close the file.

        Raises:
            OSError: if the last lines cannot be written.
        """
        self._lines.close()

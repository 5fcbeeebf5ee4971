"""Measures on rank 0 into which part of a run's goodput the time of an attempt goes; see ``slipway.base.goodput``."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

from slipway.base.files import LineFile
from slipway.base.goodput import MEASURED, START, STARTED, TRAINED, WAITED
from slipway.base.startup import age_of_this_process


class Clock:
    """One attempt, from its start to its end; appends to goodput.jsonl."""

    def __init__(self, path: Path, *, attempt: int, step: int) -> None:
        """Begin ``attempt``, at ``step``; until something else is entered, it is starting."""
        self._lines = LineFile(path)
        self._attempt = attempt
        self._seconds = dict.fromkeys(MEASURED, 0.0) | {STARTED: age_of_this_process()}
        self._part, self._since = STARTED, time.monotonic()
        self.write(step)

    def enter(self, part: str) -> str:
        """From now on the time goes into ``part``; return the part before."""
        now, before = time.monotonic(), self._part
        self._seconds[before] += now - self._since
        self._part, self._since = part, now
        return before

    def waited(self, seconds: float) -> None:
        """Of the time that has trained, so much was waiting for data."""
        self._seconds[WAITED] += seconds
        self._seconds[TRAINED] -= seconds

    def write(self, step: int, *, concluded: bool = False) -> None:
        """Append a line: what has been spent until now, of which ``step`` is saved, or nearly so.

        Args:
            step: optimiser steps done in all attempts.
            concluded: whether the attempt has ended, done or stopped.
        """
        self.enter(self._part)
        spent = {name: round(seconds, 3) for name, seconds in self._seconds.items()}
        line = {"attempt": self._attempt, "time": round(time.time(), 3), "step": step, **spent}
        self._lines.append(json.dumps(line | ({"concluded": True} if concluded else {})))

    def write_start(self, parts: Mapping[str, float]) -> None:
        """Append a line: the seconds up to the first step, by part."""
        seconds = {name: round(value, 3) for name, value in parts.items()}
        self._lines.append(json.dumps({"attempt": self._attempt, START: seconds}))

    def close(self) -> None:
        """Close the file.

        Raises:
            OSError: if its last lines cannot be written.
        """
        self._lines.close()

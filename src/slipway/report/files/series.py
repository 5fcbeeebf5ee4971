"""Metrics from metrics.jsonl as columns."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import statistics
from array import array
from collections.abc import Sequence
from typing import Any

import msgspec

from slipway.base.contract import METRICS
from slipway.report.files.untrusted_folder import Folder

MOST_BYTES = 1 << 28
"""Maximum number of bytes read from metrics.jsonl: a million records or more."""
MAX_SERIES = 48
"""Maximum number of series. Scripts can log any number; a page with hundreds of figures is useless."""
PLACES = {"kind", "step", "epoch", "elapsed"}


def _numbers() -> array[float]:
    return array("d")


@dataclasses.dataclass
class Series:
    """The history of one metric, for example the training loss, as columns of equal length."""

    kind: str
    name: str
    step: array[float] = dataclasses.field(default_factory=_numbers)
    epoch: array[float] = dataclasses.field(default_factory=_numbers)
    """Completed epochs, including fractions; NaN if the record has none."""
    elapsed: array[float] = dataclasses.field(default_factory=_numbers)
    """Seconds of training; NaN if the record has none."""
    value: array[float] = dataclasses.field(default_factory=_numbers)

    @property
    def finite(self) -> list[float]:
        """The finite values."""
        return [value for value in self.value if math.isfinite(value)]

    @property
    def last(self) -> float:
        """The last value, which may be NaN or infinite."""
        return self.value[-1]


class Metrics:
    """All series of a run, by kind and name."""

    def __init__(self, folder: Folder, *, running: bool) -> None:
        """Read metrics.jsonl; if the run is ``running``, an incomplete last line causes no warning."""
        self.series: dict[tuple[str, str], Series] = {}
        self.last_step = 0
        bad: list[int] = []
        left_out: set[tuple[str, str]] = set()
        line = b""
        number = 0
        for number, line in enumerate(folder.lines(METRICS, limit=MOST_BYTES), start=1):
            if record := _record(line):
                self._add(record, left_out)
            elif line.strip():
                bad.append(number)
        if running and bad and bad[-1] == number and not line.endswith(b"\n"):
            bad.pop()
        if bad:
            folder.warn(f"{METRICS}: {len(bad)} of {number} lines are not valid records; the first is line {bad[0]}")
        if left_out:
            folder.warn(f"{METRICS}: more than {MAX_SERIES} metrics; {len(left_out)} of them are omitted")
        for (kind, name), series in self.series.items():
            if count := len(series.value) - len(series.finite):
                pairs = zip(series.step, series.value, strict=True)
                first = next(int(step) for step, value in pairs if not math.isfinite(value))
                folder.warn(f"{METRICS}: {count} NaN or infinite values of {kind} {name}, the first at step {first}")

    def get(self, kind: str, name: str) -> Series | None:
        """Return the series of this kind and name; None if there is none."""
        return self.series.get((kind, name))

    def _add(self, record: dict[str, Any], left_out: set[tuple[str, str]]) -> None:
        kind = record["kind"]
        step = float(record["step"])
        self.last_step = max(self.last_step, record["step"])
        epoch, elapsed = _number(record.get("epoch")), _number(record.get("elapsed"))
        for name, value in record.items():
            if name in PLACES or type(value) not in (float, int):
                continue
            key = (kind, name)
            series = self.series.get(key)
            if series is None:
                if len(self.series) >= MAX_SERIES:
                    left_out.add(key)
                    continue
                series = self.series[key] = Series(kind, name)
            series.step.append(step)
            series.epoch.append(epoch)
            series.elapsed.append(elapsed)
            series.value.append(_number(value))


def _record(line: bytes) -> dict[str, Any] | None:
    """Return the record of one line; None if it is not a valid record."""
    with contextlib.suppress(ValueError, RecursionError):
        try:
            record = msgspec.json.decode(line)
        except msgspec.DecodeError:
            record = json.loads(line.decode())  # accepts NaN and Infinity, which json.dumps writes
        if isinstance(record, dict) and isinstance(record.get("kind"), str) and type(record.get("step")) is int:
            return record if 0 <= record["step"] < 1 << 53 else None
    return None


def _number(value: object) -> float:
    if type(value) not in (float, int):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf


def typical(values: Sequence[float]) -> float | None:
    """Return the median of the finite ``values``, ignoring the first (warm-up) if there are others; None if empty."""
    found = [value for value in values if math.isfinite(value)]
    return statistics.median(found[1:] or found) if found else None

"""Breakdown of a run's time, computed from its existing records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from slipway.base.goodput import MEANINGS, Spent, seconds_by_part, spare_hours
from slipway.report.files.series import Metrics, Series, typical

SECONDS = {"data_seconds", "save_seconds", "evaluation_seconds"}
"""Metrics that are shown as shares, not as curves."""


class Shares(NamedTuple):
    """Breakdown of a run's time in seconds, up to its last training record."""

    step: float
    """Optimizer steps: forward, backward, communication and update."""
    data: float
    """Waiting for data, mean over the ranks. On GPUs, earlier steps that are still executing hide some of it."""
    evaluation: float
    save: float
    """Time for which saving blocked rank 0; writing continues in the background."""
    seconds_per_step: float
    """Time of an optimizer step without its wait for data: the median of the records, robust against slow moments."""
    seconds_per_batch: float
    """Median time of an optimizer step with its wait for data."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return self.step + self.data + self.evaluation + self.save

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """Each part: name, seconds, and share of the total."""
        found = {
            "optimizer steps": self.step,
            "waiting for data": self.data,
            "evaluation": self.evaluation,
            "saving": self.save,
        }
        return [(name, seconds, seconds / self.total) for name, seconds in found.items()]

    @property
    def data_share(self) -> float:
        """Wait for data as a share of the time of steps and waits, without evaluation and saving."""
        return self.data / (self.step + self.data)


def time_breakdown(metrics: Metrics) -> Shares | None:
    """Return the breakdown of the time; None if the records do not contain it, such as those of a session."""
    waits = metrics.get("train", "data_seconds")
    if not waits:
        return None
    trained, (step, batch) = waits.elapsed[-1], _typical_seconds(waits)
    data = min(_sum(metrics, "train", "data_seconds"), trained)
    evaluation, save = _sum(metrics, "validation", "evaluation_seconds"), _sum(metrics, "train", "save_seconds")
    if not (math.isfinite(trained) and trained > 0 and data >= 0 and evaluation >= 0 and save >= 0):
        return None
    if step is None or batch is None:
        return None
    return Shares(trained - data, data, evaluation, save, step, batch)


def _typical_seconds(waits: Series) -> tuple[float | None, float | None]:
    """Return the typical time of a step without and with its wait for data, from the times of the records."""
    records = pairwise([(0.0, 0.0, 0.0), *zip(waits.step, waits.elapsed, waits.value, strict=True)])
    found = [
        (max(0.0, now - then - wait) / (step - before), (now - then) / (step - before))
        for (before, then, _), (step, now, wait) in records
        if step > before and now > then
    ]
    return typical([without for without, _ in found]), typical([whole for _, whole in found])


def _sum(metrics: Metrics, kind: str, name: str) -> float:
    series = metrics.get(kind, name)
    return sum(series.finite) if series else 0.0


class Goodput(NamedTuple):
    """Time spent by all attempts, in total and for each."""

    attempts: Sequence[Spent]

    @property
    def total(self) -> float:
        """Total seconds of all attempts."""
        return sum(spent.total for spent in self.attempts)

    @property
    def parts(self) -> list[tuple[str, str, float, float]]:
        """Each part: name, meaning, seconds, and share of the total."""
        seconds = seconds_by_part(self.attempts)
        return [(name, MEANINGS[name], seconds[name], seconds[name] / self.total) for name in MEANINGS]

    @property
    def spare_hours(self) -> float:
        """Node-hours that spare nodes spent waiting."""
        return spare_hours(self.attempts)

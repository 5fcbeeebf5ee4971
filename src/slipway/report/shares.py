"""Where the time of a run went, by what its records say: nothing is measured for that alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from slipway.base.goodput import MEANINGS, Spent, spare_hours, sums_of
from slipway.report.series import Metrics, Series, typical

SECONDS = {"data_seconds", "save_seconds", "evaluation_seconds"}
"""Numbers of records that are shown as shares, not as curves."""


class Shares(NamedTuple):
    """Seconds of a run, up to its last record of training."""

    step: float
    """Optimiser steps: forward, backward, communication and update."""
    data: float
    """Waiting for data, mean over the ranks. On GPUs some of it is hidden behind steps that were issued before."""
    evaluation: float
    save: float
    """For which saving held up rank 0; writing goes on in the background."""
    seconds_a_step: float
    """Time of an optimiser step, without its wait for data: the median of the records, as a machine has bad moments."""
    seconds_a_batch: float
    """The same with that wait."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.step + self.data + self.evaluation + self.save

    @property
    def parts(self) -> list[tuple[str, float, float]]:
        """Each part: what it is, its seconds, and its share of all."""
        found = {
            "optimiser steps": self.step,
            "waiting for data": self.data,
            "evaluation": self.evaluation,
            "saving": self.save,
        }
        return [(name, seconds, seconds / self.total) for name, seconds in found.items()]

    @property
    def data_share(self) -> float:
        """Waiting for data, as a share of the time between evaluations and saves."""
        return self.data / (self.step + self.data)


def shares_of(metrics: Metrics) -> Shares | None:
    """Return where the time went; None where the records do not tell: of a session."""
    waits = metrics.get("train", "data_seconds")
    if not waits:
        return None
    trained, (step, batch) = waits.elapsed[-1], _seconds_each(waits)
    data = min(_sum(metrics, "train", "data_seconds"), trained)
    evaluation, save = _sum(metrics, "validation", "evaluation_seconds"), _sum(metrics, "train", "save_seconds")
    if not (math.isfinite(trained) and trained > 0 and data >= 0 and evaluation >= 0 and save >= 0):
        return None
    if step is None or batch is None:
        return None
    return Shares(trained - data, data, evaluation, save, step, batch)


def _seconds_each(waits: Series) -> tuple[float | None, float | None]:
    """Return the time of a step, without and with its wait for data, from when records were written."""
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
    """What all attempts have spent together, and each by itself."""

    attempts: Sequence[Spent]

    @property
    def total(self) -> float:
        """Seconds of all attempts."""
        return sum(spent.total for spent in self.attempts)

    @property
    def parts(self) -> list[tuple[str, str, float, float]]:
        """Each part: its name, what it means, its seconds, and its share of all."""
        seconds = sums_of(self.attempts)
        return [(name, MEANINGS[name], seconds[name], seconds[name] / self.total) for name in MEANINGS]

    @property
    def spare_hours(self) -> float:
        """Node-hours for which spare nodes have waited."""
        return spare_hours(self.attempts)

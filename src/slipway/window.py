"""Numbers that a script logs in its steps: added up where they are, and read back once in a while."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from slipway.arguments import as_number
from slipway.errors import SessionError
from slipway.sums import Number

Sums = dict[str, list[float]]
"""By name: the sum of the finite values that were logged, their number, and how many were inf or nan."""
RESERVED = {"kind", "step", "epoch", "elapsed", "lr", "steps_per_second"}
"""What a record of metrics.jsonl says by itself."""
DIGITS = 7
"""Significant digits of a mean: those of float32, in which losses are computed."""


class Window:
    """What has been logged since the last record."""

    def __init__(self, carried: Mapping[str, list[float]] | None = None) -> None:
        """Begin with what a checkpoint ``carried`` over; older ones do not count what was inf or nan."""
        self._totals: Sums = {name: [*sums, 0][:3] for name, sums in (carried or {}).items()}
        self._own: dict[str, Logged] = {}

    def log(self, values: Mapping[str, Any]) -> None:
        """Add this rank's ``values``: numbers, or tensors of one element on any device; nothing waits for a GPU.

        Sums are float64, in which those of float32 are exact: they do not depend on how ranks and saves divide them.
        """
        for name, value in values.items():
            number = as_number("log", name, value)
            own = self._own.get(name)
            if own is None:
                require_free_names({name})
                own = self._own[name] = Logged()
            own.add(number)

    def take(self) -> Sums:
        """Return this rank's part since the last call, and begin anew."""
        part = {name: own.sums() for name, own in self._own.items()}
        self._own = {}
        return part

    def add(self, parts: list[Sums]) -> None:
        """Add the parts of all ranks to the totals."""
        for part in parts:
            for name, sums in part.items():
                before = self._totals.get(name, [0.0, 0, 0])
                self._totals[name] = [old + new for old, new in zip(before, sums, strict=True)]

    @property
    def totals(self) -> Sums:
        """A copy of the sums over all ranks, up to the last ``add``."""
        return {name: list(sums) for name, sums in self._totals.items()}

    @property
    def means(self) -> dict[str, float]:
        """The means of the finite values over ranks and steps, and under NAME_nonfinite the number of the others."""
        means: dict[str, float] = {}
        for name, (total, count, nonfinite) in self._totals.items():
            if count:
                means[name] = float(f"{total / count:.{DIGITS}g}")
            if nonfinite:
                means[f"{name}_nonfinite"] = nonfinite
        return means

    def clear(self) -> None:
        """Begin the next record."""
        self._totals = {}


class Logged:
    """The values of one name on this rank. On a GPU each is copied into one tensor, as their sum may not be finite."""

    FIRST = 64
    """Values for which that tensor has room at first."""

    def __init__(self) -> None:
        """Begin with no value."""
        self._sums: list[float] = [0.0, 0, 0]
        self._values: Tensor | None = None
        self._used = 0

    def add(self, value: Number) -> None:
        """Add a value; nothing waits for a GPU."""
        if not isinstance(value, Tensor):
            self._add(value)
            return
        if self._values is None or self._used == len(self._values):
            with torch.inference_mode(False):  # else nothing could be written into it outside of that mode
                room = torch.empty(self._used or self.FIRST, dtype=torch.float64, device=value.device)
                self._values = room if self._values is None else torch.cat([self._values, room.to(self._values.device)])
        self._values[self._used].copy_(value, non_blocking=True)
        self._used += 1

    def sums(self) -> list[float]:
        """Return the sum of the finite values, their number, and that of the others; waits for the device."""
        if self._values is not None:
            for value in self._values[: self._used].tolist():
                self._add(value)
            self._used = 0
        return self._sums

    def _add(self, value: float) -> None:
        if math.isfinite(value):
            self._sums[0] += value
            self._sums[1] += 1
        else:
            self._sums[2] += 1


def require_free_names(names: Iterable[str]) -> None:
    """Raise a SessionError if a name belongs to what each record says by itself."""
    if taken := RESERVED.intersection(names):
        raise SessionError("bad-name", f"{', '.join(sorted(taken))} is in each record by itself: give it another name.")

"""Values that a script logs in its steps: collected on their device, and read back at each record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slipway.base.errors import SessionError
from slipway.script.arguments import as_number

Number = float | Tensor
"""A float, or a zero-dimensional tensor that is not on the CPU."""
Sums = dict[str, list[float]]
"""By name: the sum of the finite logged values, their count, and the count of inf and nan values."""
RESERVED = {"kind", "step", "epoch", "elapsed", "lr", "steps_per_second"}
"""Names that each record of metrics.jsonl already contains."""
DIGITS = 7
"""Significant digits of a recorded mean: those of float32, the usual dtype of losses."""


class Window:
    """Values logged since the last record.

    Each rank keeps its own sums, and the record adds them in rank order. A record is therefore bitwise identical
    wherever the run was saved or stopped.
    """

    def __init__(self, rank: int, size: int, carried: Sequence[Sums]) -> None:
        """Start with the ``parts`` of all ranks from a checkpoint, for rank ``rank`` of ``size``.

        If the number of ranks has changed, each part goes to one of the new ranks.
        """
        self._own: dict[str, Logged] = {}
        for part in carried[rank::size]:
            for name, sums in part.items():
                self._own.setdefault(name, Logged()).add_sums(sums)
        self._nonfinite = _count_nonfinite(self.part())
        self.parts: list[Sums] = []
        """Sums of each rank since the last record, as of the last exchange between ranks."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Add this rank's ``values``, numbers or tensors of one element on any device, without waiting for a GPU."""
        for name, value in values.items():
            number = as_number("log", name, value)
            own = self._own.get(name)
            if own is None:
                require_free_names({name})
                own = self._own[name] = Logged()
            own.add(number)

    def part(self) -> Sums:
        """Return this rank's sums since the last record; waits for the device."""
        return {name: own.sums() for name, own in self._own.items()}

    def new_nonfinite_names(self, part: Sums) -> list[str]:
        """Return the names with more inf or nan values in ``part`` than at the last call."""
        before, self._nonfinite = self._nonfinite, _count_nonfinite(part)
        return [name for name, count in self._nonfinite.items() if count > before.get(name, 0)]

    @property
    def means(self) -> dict[str, float]:
        """Means of the finite values over ranks and steps, and the count of other values as NAME_nonfinite."""
        means: dict[str, float] = {}
        for name in dict.fromkeys(name for part in self.parts for name in part):
            total, count, nonfinite = map(sum, zip(*(part[name] for part in self.parts if name in part), strict=True))
            if count:
                means[name] = float(f"{total / count:.{DIGITS}g}")
            if nonfinite:
                means[f"{name}_nonfinite"] = nonfinite
        return means

    def clear(self) -> None:
        """Drop all sums, to start the next record."""
        self._own, self._nonfinite, self.parts = {}, {}, []


def _count_nonfinite(part: Sums) -> dict[str, float]:
    return {name: nonfinite for name, (*_, nonfinite) in part.items()}


class Logged:
    """Values of one name on this rank.

    Values on a GPU are collected in a tensor and not summed there, because inf and nan values must be excluded.
    """

    FIRST = 64
    """Initial capacity of that tensor."""

    def __init__(self) -> None:
        """Start without values."""
        self._sums: list[float] = [0.0, 0, 0]
        self._values: Tensor | None = None
        self._used = 0

    def add(self, value: Number) -> None:
        """Add a value without waiting for a GPU."""
        if isinstance(value, Tensor):
            self._keep(value)
        elif math.isfinite(value):
            self._sums[0] += value
            self._sums[1] += 1
        else:
            self._sums[2] += 1

    def sums(self) -> list[float]:
        """Return the sum and count of the finite values, and the count of the others; waits for the device."""
        if self._values is not None:
            for value in self._values[: self._used].tolist():
                self.add(value)
            self._used = 0
        return list(self._sums)

    def add_sums(self, sums: Sequence[float]) -> None:
        """Add a result of ``sums``."""
        self._sums = [own + more for own, more in zip(self._sums, sums, strict=True)]

    def _keep(self, value: Tensor) -> None:
        if self._values is None or self._used == len(self._values):
            with torch.inference_mode(False):  # an inference tensor could not be written outside inference mode
                room = torch.empty(self._used or self.FIRST, dtype=torch.float64, device=value.device)
                self._values = room if self._values is None else torch.cat([self._values, room.to(self._values.device)])
        self._values[self._used].copy_(value, non_blocking=True)
        self._used += 1


def require_free_names(names: Iterable[str]) -> None:
    """Raise a SessionError if one of ``names`` is reserved for the record itself."""
    if taken := RESERVED.intersection(names):
        raise SessionError("bad-name", f"{', '.join(sorted(taken))}: reserved by the record itself; use another name.")

"""Numbers that a script logs in its steps: added up where they are, and read back once in a while."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slipway.base.errors import SessionError
from slipway.script.arguments import as_number

Number = float | Tensor
"""A float, or a tensor of one element without shape, which is not on the CPU."""


class Sum:
    """A sum of numbers, taken in their order; nothing waits for a GPU."""

    def __init__(self, total: float = 0.0) -> None:
        """Begin with ``total``."""
        self._total: Number = total

    def add(self, value: Number, factor: Number = 1.0) -> None:
        """Add ``factor`` times ``value``."""
        if isinstance(factor, Tensor):
            value, factor = factor.double() * value, 1.0
        if isinstance(value, Tensor) and not isinstance(self._total, Tensor):
            with torch.inference_mode(False):  # else it could not be added to outside of that mode
                self._total = torch.full((), self._total, dtype=torch.float64, device=value.device)
        if isinstance(self._total, Tensor):
            if isinstance(value, Tensor):
                self._total.add_(value.to(self._total.device), alpha=factor)
            else:
                self._total.add_(value * factor)
        else:
            self._total += value * factor

    def __float__(self) -> float:
        """Return the sum; waits for the device."""
        return float(self._total)


Sums = dict[str, list[float]]
"""By name: the sum of the finite values that were logged, their number, and how many were inf or nan."""
RESERVED = {"kind", "step", "epoch", "elapsed", "lr", "steps_per_second"}
"""What a record of metrics.jsonl says by itself."""
DIGITS = 7
"""Significant digits of a mean: those of float32, in which losses are computed."""


class Window:
    """What has been logged since the last record.

    The sums of each rank are kept apart, and added up in the order of the ranks where they are recorded: so a record is
    the same to the last bit wherever a run was saved or stopped.
    """

    def __init__(self, rank: int, size: int, carried: Sequence[Sums] = ()) -> None:
        """Begin with the ``parts`` of all ranks that a checkpoint carried over, for one rank of ``size``.

        Where the number of ranks has changed, each part goes to one of them.
        """
        self._own: dict[str, Logged] = {}
        for part in carried[rank::size]:
            for name, sums in part.items():
                self._own.setdefault(name, Logged()).add_sums(sums)
        self._nonfinite = self._count_nonfinite(self.part())
        self.parts: list[Sums] = []
        """What each rank has logged since the last record, as of their last exchange."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Add this rank's ``values``: numbers, or tensors of one element on any device; nothing waits for a GPU."""
        for name, value in values.items():
            number = as_number("log", name, value)
            own = self._own.get(name)
            if own is None:
                require_free_names({name})
                own = self._own[name] = Logged()
            own.add(number)

    def part(self) -> Sums:
        """Return what this rank has logged since the last record."""
        return {name: own.sums() for name, own in self._own.items()}

    def became_nonfinite(self, part: Sums) -> list[str]:
        """Return the names of which ``part`` has values of inf or nan that the last call did not see."""
        before, self._nonfinite = self._nonfinite, self._count_nonfinite(part)
        return [name for name, count in self._nonfinite.items() if count > before.get(name, 0)]

    @property
    def means(self) -> dict[str, float]:
        """The means of the finite values over ranks and steps, and under NAME_nonfinite the number of the others."""
        means: dict[str, float] = {}
        for name in dict.fromkeys(name for part in self.parts for name in part):
            total, count, nonfinite = map(sum, zip(*(part[name] for part in self.parts if name in part), strict=True))
            if count:
                means[name] = float(f"{total / count:.{DIGITS}g}")
            if nonfinite:
                means[f"{name}_nonfinite"] = nonfinite
        return means

    def clear(self) -> None:
        """Begin the next record."""
        self._own, self._nonfinite, self.parts = {}, {}, []

    def _count_nonfinite(self, part: Sums) -> dict[str, float]:
        return {name: nonfinite for name, (*_, nonfinite) in part.items()}


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
        if isinstance(value, Tensor):
            self._keep(value)
        elif math.isfinite(value):
            self._sums[0] += value
            self._sums[1] += 1
        else:
            self._sums[2] += 1

    def sums(self) -> list[float]:
        """Return the sum of the finite values, their number, and that of the others; waits for the device."""
        if self._values is not None:
            for value in self._values[: self._used].tolist():
                self.add(value)
            self._used = 0
        return list(self._sums)

    def add_sums(self, sums: Sequence[float]) -> None:
        """Add what ``sums`` returned."""
        self._sums = [own + more for own, more in zip(self._sums, sums, strict=True)]

    def _keep(self, value: Tensor) -> None:
        if self._values is None or self._used == len(self._values):
            with torch.inference_mode(False):  # else nothing could be written into it outside of that mode
                room = torch.empty(self._used or self.FIRST, dtype=torch.float64, device=value.device)
                self._values = room if self._values is None else torch.cat([self._values, room.to(self._values.device)])
        self._values[self._used].copy_(value, non_blocking=True)
        self._used += 1


def require_free_names(names: Iterable[str]) -> None:
    """Raise a SessionError if a name belongs to what each record says by itself."""
    if taken := RESERVED.intersection(names):
        raise SessionError("bad-name", f"{', '.join(sorted(taken))} is in each record by itself: give it another name.")

"""Numbers that a script logs: summed where they are, and read back once in a while."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from slipway.errors import SessionError

Sums = dict[str, list[float]]
"""By name: the sum of what was logged, and how many values that is."""
RESERVED = {"kind", "step", "epoch", "elapsed", "lr", "steps_per_second"}
"""What a record of metrics.jsonl says by itself."""
DIGITS = 7
"""Significant digits of a mean: those of float32, in which losses are computed."""


class Window:
    """What has been logged since the last record."""

    def __init__(self, carried: Mapping[str, list[float]] | None = None) -> None:
        """Begin with what a checkpoint ``carried`` over."""
        self._totals: Sums = {name: list(pair) for name, pair in (carried or {}).items()}
        self._own: dict[str, list[Any]] = {}
        """By name: the sum of this rank's values since ``take``, as a float or a tensor, and their number."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Add this rank's ``values``: numbers, or tensors of one element on any device; nothing waits for a GPU.

        Sums are float64, in which those of float32 are exact: they do not depend on how ranks and saves divide them.
        """
        for name, value in values.items():
            own = self._own.get(name) or self._begin(name, value)
            if isinstance(value, Tensor):
                own[0] += value.item() if value.is_cpu else value.detach()
            else:
                own[0] += float(value)
            own[1] += 1

    def _begin(self, name: str, value: Any) -> list[Any]:
        require_free_names({name})
        total: Any = 0.0
        if isinstance(value, Tensor):
            if value.numel() != 1:
                raise SessionError(
                    "not-a-number", f"log({name}=...) takes a number, not a tensor of {list(value.shape)}."
                )
            if not value.is_cpu:
                total = torch.zeros_like(value, dtype=torch.float64, requires_grad=False)
        elif not isinstance(value, Real):
            raise SessionError("not-a-number", f"log({name}=...) takes a number, not a {type(value).__name__}.")
        return self._own.setdefault(name, [total, 0])

    def take(self) -> Sums:
        """Return this rank's part since the last call, and begin anew."""
        part = {name: [float(total), count] for name, (total, count) in self._own.items()}
        self._own = {}
        return part

    def add(self, parts: list[Sums]) -> None:
        """Add the parts of all ranks to the totals."""
        for part in parts:
            for name, (total, count) in part.items():
                pair = self._totals.setdefault(name, [0.0, 0])
                pair[0] += total
                pair[1] += count

    @property
    def totals(self) -> Sums:
        """A copy of the sums over all ranks, up to the last ``add``."""
        return {name: list(pair) for name, pair in self._totals.items()}

    @property
    def means(self) -> dict[str, float]:
        """The means over ranks and steps."""
        return {name: float(f"{total / count:.{DIGITS}g}") for name, (total, count) in self._totals.items() if count}

    @property
    def not_finite(self) -> list[str]:
        """Names of what became inf or nan."""
        return [name for name, (total, _) in self._totals.items() if not math.isfinite(total)]

    def clear(self) -> None:
        """Begin the next record."""
        self._totals = {}


def require_free_names(names: Iterable[str]) -> None:
    """Raise a SessionError if a name belongs to what each record says by itself."""
    if taken := RESERVED.intersection(names):
        raise SessionError("bad-name", f"{', '.join(sorted(taken))} is in each record by itself: give it another name.")

"""Means over a pass of ``session.batches``: over its batches of all ranks, in all attempts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from slipway.base.errors import SessionError
from slipway.script.arguments import as_number
from slipway.script.step_metrics import Number

Part = dict[str, list[float]]
"""Sums of one rank in one pass: by name, the sum of weight times value, and the sum of weights."""


class Sum:
    """A running sum in float64, added in order without waiting for a GPU."""

    def __init__(self) -> None:
        """Begin with 0."""
        self._total: Number = 0.0

    def add(self, value: Number, factor: Number = 1.0) -> None:
        """Add ``factor`` times ``value``."""
        if isinstance(factor, Tensor):
            value, factor = factor.double() * value, 1.0
        if isinstance(value, Tensor) and not isinstance(self._total, Tensor):
            with torch.inference_mode(False):  # an inference tensor could not be updated outside inference mode
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


class Means:
    """The means of the passes of an epoch.

    Each rank keeps its own sums, and the mean adds them in rank order. A mean is therefore bitwise identical wherever
    the run was stopped.
    """

    def __init__(self, rank: int, size: int) -> None:
        """Start without values, for rank ``rank`` of ``size``."""
        self._rank, self._size = rank, size
        self._saved: dict[int, list[Part]] = {}
        """By pass number, the saved parts of all ranks."""
        self._ended: dict[int, list[Part]] = {}
        """By pass number, the parts of all ranks, for ended passes of this epoch."""
        self._number = 0
        self._own: dict[str, tuple[Sum, Sum]] | None = None
        """This rank's sums in the current pass; None between two passes."""

    def resume(self, saved: Mapping[str, list[Part]], *, under_way: int | None) -> None:
        """Continue from a saved result of ``facts``.

        Args:
            saved: the result of ``facts``.
            under_way: number of the pass in which the run was saved; None between two epochs.
        """
        self._saved = {int(number): parts for number, parts in saved.items()}
        self._ended = {n: parts for n, parts in self._saved.items() if under_way is None or n < under_way}

    def facts(self, parts: Sequence[Part]) -> dict[str, list[Part]]:
        """Return the argument for ``resume``; ``parts`` are those of all ranks in the current pass."""
        found = dict(self._ended)
        if self._own is not None:
            found[self._number] = list(parts)
        return {str(number): of_ranks for number, of_ranks in found.items() if any(of_ranks)}

    def next_epoch(self) -> None:
        """Forget the means of the last epoch."""
        self._ended = {}

    def begin(self, number: int, *, resumed: bool) -> None:
        """Begin a pass; if it is ``resumed``, continue with this rank's saved sums.

        If the number of ranks has changed, each saved part goes to one of the new ranks.
        """
        parts = self._saved.pop(number, []) if resumed else []
        self._number, self._own = number, {}
        for part in parts[self._rank :: self._size]:
            for name, sums in part.items():
                for total, more in zip(self._sums_of(name), sums, strict=True):
                    total.add(more)

    def add(self, name: str, value: Any, weight: Any) -> None:
        """Add a value of this rank without waiting for a GPU.

        Raises:
            SessionError: if the value or weight is not a number, the weight is below 0, or no pass is running.
        """
        if self._own is None:
            raise SessionError(
                "mean-outside-batches",
                f"mean({name!r}, ...) was called outside a loop over session.batches. It works only within one: a "
                "resumed run would add other values twice.",
            )
        number, factor = as_number("mean", name, value), as_number("mean", "weight", weight)
        if isinstance(factor, float) and not factor >= 0:
            raise SessionError("not-a-number", f"mean({name!r}, weight={weight!r}): a weight must not be below 0.")
        total, weights = self._sums_of(name)
        total.add(number, factor)
        weights.add(factor)

    def part(self) -> Part:
        """Return this rank's sums in the current pass; waits for the GPU."""
        return {name: [float(total), float(weights)] for name, (total, weights) in (self._own or {}).items()}

    def end(self, parts: list[Part]) -> None:
        """End the pass; ``parts`` are the sums of all ranks in it."""
        self._ended[self._number], self._own = parts, None

    def read(self, name: str) -> float:
        """Return the mean of the last pass of this epoch that has values of ``name``.

        Within a pass, this is the mean of this rank so far.

        Raises:
            SessionError: if no pass of this epoch has values of ``name``.
        """
        if self._own and name in self._own:
            return _mean([{name: [float(each) for each in self._own[name]]}], name)
        for _, parts in sorted(self._ended.items(), reverse=True):
            if any(name in part for part in parts):
                return _mean(parts, name)
        raise SessionError(
            "unknown-metric", f"mean({name!r}) has no value in this epoch: add values with mean({name!r}, value)."
        )

    def _sums_of(self, name: str) -> tuple[Sum, Sum]:
        assert self._own is not None
        if name not in self._own:
            self._own[name] = Sum(), Sum()
        return self._own[name]


def _mean(parts: Sequence[Part], name: str) -> float:
    sums = [part[name] for part in parts if name in part]
    total, weights = (sum(column) for column in zip(*sums, strict=True))
    return total / weights if weights else math.nan

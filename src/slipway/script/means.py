"""Means over a pass of ``session.batches``: over all of its batches and ranks, in however many attempts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slipway.base.errors import SessionError
from slipway.script.arguments import as_number
from slipway.script.window import Sum

Part = dict[str, list[float]]
"""What one rank has added in one pass: by name, the sum of weight times value, and the sum of weights."""


class Means:
    """The means of the passes of an epoch.

    The sums of each rank are kept apart, and added up in the order of the ranks. So a mean is the same to the last bit
    wherever a run was stopped.
    """

    def __init__(self, rank: int, size: int) -> None:
        """Begin without values, for one rank of ``size``."""
        self._rank, self._size = rank, size
        self._saved: dict[int, list[Part]] = {}
        """By the number of a pass, the part of each rank as it was saved."""
        self._ended: dict[int, list[Part]] = {}
        """The same of the passes of this epoch that have ended."""
        self._number = 0
        self._own: dict[str, tuple[Sum, Sum]] | None = None
        """What this rank has added in the pass under way; None between two passes."""

    def resume(self, saved: Mapping[str, list[Part]], *, under_way: int | None) -> None:
        """Go on from what ``facts`` returned.

        Args:
            saved: that.
            under_way: number of the pass in which the run was saved; None between two epochs.
        """
        self._saved = {int(number): parts for number, parts in saved.items()}
        self._ended = {n: parts for n, parts in self._saved.items() if under_way is None or n < under_way}

    def facts(self, parts: Sequence[Part]) -> dict[str, list[Part]]:
        """Return what ``resume`` takes; ``parts`` are those of all ranks in the pass under way."""
        found = dict(self._ended)
        if self._own is not None:
            found[self._number] = list(parts)
        return {str(number): of_ranks for number, of_ranks in found.items() if any(of_ranks)}

    def next_epoch(self) -> None:
        """Forget the means of the last epoch."""
        self._ended = {}

    def begin(self, number: int, *, resumed: bool) -> None:
        """Begin a pass, or continue it if it is ``resumed``, with what this rank had added then.

        Where the number of ranks has changed, each part goes to one of them.
        """
        parts = self._saved.pop(number, []) if resumed else []
        self._number, self._own = number, {}
        for part in parts[self._rank :: self._size]:
            for name, sums in part.items():
                for total, more in zip(self._sums_of(name), sums, strict=True):
                    total.add(more)

    def add(self, name: str, value: Any, weight: Any) -> None:
        """Add a value of this rank; nothing waits for a GPU.

        Raises:
            SessionError: if one is not a number, the weight is below 0, or no pass is under way.
        """
        if self._own is None:
            raise SessionError(
                "mean-outside-batches",
                f"mean({name!r}, ...) adds to the mean of a loop over session.batches, and stands outside of one: "
                "values from elsewhere would be added twice where a run is resumed.",
            )
        number, factor = as_number("mean", name, value), as_number("mean", "weight", weight)
        if isinstance(factor, float) and not factor >= 0:
            raise SessionError("not-a-number", f"mean({name!r}, weight={weight!r}): a weight must not be below 0.")
        total, weights = self._sums_of(name)
        total.add(number, factor)
        weights.add(factor)

    def part(self) -> Part:
        """Return what this rank has added in the pass under way; waits for the GPU."""
        return {name: [float(total), float(weights)] for name, (total, weights) in (self._own or {}).items()}

    def end(self, parts: list[Part]) -> None:
        """End the pass, in which the ranks have added ``parts``."""
        self._ended[self._number], self._own = parts, None

    def read(self, name: str) -> float:
        """Return the mean of the last pass of this epoch that has values of ``name``.

        In a pass that is under way that is the mean of this rank so far.

        Raises:
            SessionError: if there is none.
        """
        if self._own and name in self._own:
            return _mean([{name: [float(each) for each in self._own[name]]}], name)
        for _, parts in sorted(self._ended.items(), reverse=True):
            if any(name in part for part in parts):
                return _mean(parts, name)
        raise SessionError(
            "unknown-metric", f"mean({name!r}) has no value in this epoch: add them by mean({name!r}, value)."
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

"""Steps that a GradScaler skips, because gradients overflow in float16: no fault of the training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.amp import GradScaler

SMALLEST_SCALE = 2.0**-14
"""Smallest number that float16 holds in full. A scaler below it has skipped step after step, and skips for ever."""


class Scalers:
    """The scalers of a script, seen once in a while."""

    def __init__(self, scalers: Iterable[Any]) -> None:
        """Look at ``scalers`` for the first time; those that are not enabled, or of another type, skip nothing."""
        self._scalers = [each for each in scalers if isinstance(each, GradScaler) and each.is_enabled()]
        self._seen = self._look()

    def __bool__(self) -> bool:
        """Return whether there is one."""
        return bool(self._scalers)

    def have_skipped(self) -> bool:
        """Return whether one has skipped steps since the last call, and may take the next one; waits for the GPU.

        A skipped step lowers the scale, and lets its growth begin anew.
        """
        before, self._seen = self._seen, self._look()
        return any(
            now != then and (now[0] < then[0] or now[1] < then[1]) and now[0] >= SMALLEST_SCALE
            for then, now in zip(before, self._seen, strict=True)
        )

    def _look(self) -> list[tuple[float, int]]:
        """Return of each scaler the scale, and the steps since that changed."""
        states = [scaler.state_dict() for scaler in self._scalers]
        return [(state["scale"], state["_growth_tracker"]) for state in states]

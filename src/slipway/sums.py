"""Sums of numbers that a script computes: in float64, on the device where the numbers are."""

from __future__ import annotations

import torch
from torch import Tensor

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

"""Communicator protocol of a run's ranks, and its implementation for a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from slipway.base.environment import World


class Communicator(Protocol):
    """Endpoint of one rank in a process group. All ranks must make the same calls in the same order."""

    world: World
    device: torch.device
    """Device of this rank's tensors; messages may also be on the CPU, if the library supports that."""

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all ranks, as a new tensor.

        Args:
            values: a tensor of any shape, with a dtype that the library reduces: float32, float64 or int32.
        """
        ...

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` with rank 0's; shapes and dtypes must be the same on all ranks."""
        ...

    def close(self) -> None:
        """Leave the group. Call it only after success: a failed peer can no longer respond."""
        ...


class Alone:
    """Communicator of a world with a single rank."""

    def __init__(self, device: torch.device) -> None:
        """Create a world with one rank on ``device``."""
        self.world = World()
        self.device = device

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return a copy of ``values``."""
        return values.clone()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Do nothing: the only rank is rank 0."""

    def close(self) -> None:
        """Do nothing: no group exists."""

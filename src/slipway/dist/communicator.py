"""How the ranks of a run speak with each other: over torch.distributed, over Horovod, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from slipway.base.environment import World


class Communicator(Protocol):
    """One rank's end of a group of processes. All ranks must make the same calls in the same order."""

    world: World
    device: torch.device
    """Where this rank's tensors are; messages may be on the CPU too, if the library takes them."""

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all ranks, as a new tensor.

        Args:
            values: of any shape, and a dtype that the library reduces: float32, float64 or int32.
        """
        ...

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors``, of the same shapes and dtypes on all ranks, with rank 0's."""
        ...

    def close(self) -> None:
        """Leave the group, after success only: a peer that failed can no longer answer."""
        ...


class Alone:
    """A world of one rank."""

    def __init__(self, device: torch.device) -> None:
        """Compute on ``device``."""
        self.world = World()
        self.device = device

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return a copy of the values."""
        return values.clone()

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0 has them already."""

    def close(self) -> None:
        """There is no group."""

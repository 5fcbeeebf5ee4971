"""Ranks that speak over Horovod, by its own Gloo controller or over MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import horovod.torch as hvd
import torch
from torch import Tensor

from slipway.base import startup
from slipway.base.environment import World


class HorovodCommunicator:
    """One rank of Horovod's world."""

    def __init__(self, pick_device: Callable[[World], torch.device], *, owned: bool = True) -> None:
        """Join it, waiting for all ranks.

        Args:
            pick_device: chooses where this rank computes, once its place is known.
            owned: whether ``close`` shuts Horovod down; not where a script has joined the world before.
        """
        self._owned = owned
        if owned:
            hvd.init()
            startup.mark(startup.RANKS)
        self.world = World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
        self.device = pick_device(self.world)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """All-reduce ``values``."""
        return hvd.allreduce(values, name="all_reduce_sum", op=hvd.Sum)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Send all at once."""
        for handle in [
            hvd.broadcast_async_(tensor, root_rank=0, name=f"broadcast.{index}") for index, tensor in enumerate(tensors)
        ]:
            hvd.synchronize(handle)

    def close(self) -> None:
        """Wait until all ranks have come here, and shut down what is owned."""
        hvd.barrier()
        if self._owned:
            hvd.shutdown()

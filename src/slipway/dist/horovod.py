"""Communicator over Horovod, with its Gloo controller or MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import horovod.torch as hvd
import torch
from torch import Tensor

from slipway.base import startup_time
from slipway.base.environment import World


class HorovodCommunicator:
    """Endpoint of one rank in Horovod's world."""

    def __init__(self, pick_device: Callable[[World], torch.device], *, owned: bool = True) -> None:
        """Join the world and wait for all ranks.

        Args:
            pick_device: returns this rank's device, given its place in the world.
            owned: whether to initialize Horovod here and shut it down in ``close``; False if a script has already
                joined the world.
        """
        self._owned = owned
        if owned:
            hvd.init()
            startup_time.mark(startup_time.RANKS)
        self.world = World(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size())
        self.device = pick_device(self.world)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all ranks."""
        return hvd.allreduce(values, name="all_reduce_sum", op=hvd.Sum)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` with rank 0's, in asynchronous operations."""
        for handle in [
            hvd.broadcast_async_(tensor, root_rank=0, name=f"broadcast.{index}") for index, tensor in enumerate(tensors)
        ]:
            hvd.synchronize(handle)

    def close(self) -> None:
        """Wait until all ranks have called this, and shut Horovod down if it is owned."""
        hvd.barrier()
        if self._owned:
            hvd.shutdown()

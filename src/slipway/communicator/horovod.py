"""Ranks that speak over Horovod, by its own Gloo controller or over MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import horovod.torch as hvd
import torch
from torch import Tensor

from slipway.world import World


class HorovodCommunicator:
    """One rank of Horovod's world."""

    def __init__(self, pick_device: Callable[[World], torch.device]) -> None:
        """Join it, waiting for all ranks; ``pick_device`` chooses where this rank computes, once its place is known."""
        hvd.init()
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
        """Shut down once all ranks have come here."""
        hvd.barrier()
        hvd.shutdown()

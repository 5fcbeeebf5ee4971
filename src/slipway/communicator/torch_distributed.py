"""Ranks that speak over a process group of torch.distributed."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slipway.communicator.sharing import count_alike
from slipway.errors import JoinError, RendezvousError, one_line
from slipway.world import World


class TorchCommunicator:
    """One rank of the default process group, which it opens."""

    def __init__(self, world: World, device: torch.device, *, library: str, init_method: str, timeout: float) -> None:
        """Open the group, waiting for all ranks.

        Args:
            world: rank, size and local rank as the launcher says; the number of ranks on this node is counted here.
            device: of this rank.
            library: torch's name of it: gloo, nccl, mpi.
            init_method: ``env://`` or a URL that torch takes.
            timeout: seconds that ranks wait for each other, to join and in each operation.

        Raises:
            RendezvousError: if MASTER_ADDR or MASTER_PORT are needed and not set.
            JoinError: if the ranks do not find each other.
        """
        self.device, self.world = device, world
        limit = timedelta(seconds=timeout)
        try:
            store, method = _store(init_method, world, limit)
            dist.init_process_group(
                library, store=store, init_method=method, rank=world.rank, world_size=world.size, timeout=limit
            )
            # The first collective operation, in which NCCL connects.
            here = count_alike(self, socket.gethostname())
        except (RuntimeError, ValueError, OSError) as error:  # DistError is a RuntimeError
            reason = one_line(str(error).partition("\n")[0]) or type(error).__name__
            raise JoinError(rank=world.rank, size=world.size, reason=reason) from error
        self.world = World(world.rank, world.size, world.local_rank, here)

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """All-reduce a copy of ``values``."""
        values = values.clone()
        dist.all_reduce(values)
        return values

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Send them one by one."""
        for tensor in tensors:
            dist.broadcast(tensor, src=0)

    def close(self) -> None:
        """Destroy the group.

        Without the collection, gloo ranks of torch 2.13 now and then abort at exit ("terminate called without an active
        exception"): the reducer of a DistributedDataParallel must be gone before the group is.
        """
        # All have come here, and hold nothing that is still on its way.
        self.all_reduce_sum(torch.zeros(1, device=self.device))
        gc.collect()
        dist.destroy_process_group()


def _store(init_method: str, world: World, timeout: timedelta) -> tuple[Any, str | None]:
    """Return the store of the rendezvous, or else the method by which torch finds one.

    torchrun keeps a store of its own. Where we open it (a job script started one process per rank), rank 0 listens on
    the address that the others were given, not on all interfaces as torch would.
    """
    if init_method != "env://" or "TORCHELASTIC_RUN_ID" in os.environ:
        return None, init_method
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise RendezvousError(missing=" and ".join(missing))
    if not os.environ["MASTER_PORT"].isdecimal():
        raise RendezvousError(missing=f"a number in MASTER_PORT, not {os.environ['MASTER_PORT']!r}")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = None
    if world.rank == 0:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((address, port), family=family, backlog=world.size)
    store = dist.TCPStore(  # type: ignore[attr-defined] # torch's stubs leave it out
        address,
        port,
        world.size,
        is_master=world.rank == 0,
        timeout=timeout,
        master_listen_fd=listener.detach() if listener else None,
    )
    return store, None

"""Communicator over a torch.distributed process group, and the opening of the default group."""

from __future__ import annotations

import errno
import gc
import logging
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slipway.dist.collectives import count_equal
from slipway.base.errors import JoinError, one_line, warn
from slipway.base.environment import World
from slipway.dist.gloo_threads import wait_at_exit

log = logging.getLogger(__name__)

FIRST_WARNING_SECONDS, WARNING_INTERVAL_SECONDS = 30.0, 60.0
"""Seconds until a rank that waits for the others first logs a warning, and between further warnings."""


class TorchCommunicator:
    """Endpoint of one rank in a process group; no other code may use the group at the same time."""

    def __init__(self, group: dist.ProcessGroup | None, device: torch.device, *, local_rank: int) -> None:
        """Use the open ``group``. All its ranks must call this, because it counts the ranks on each node.

        Args:
            group: a process group; None for the default one. ``close`` destroys it.
            device: device of this rank.
            local_rank: local rank from the launcher.
        """
        wait_at_exit()
        self._group = group
        self._root = dist.get_global_rank(group, 0) if group else 0
        self.device = device
        self.world = World(dist.get_rank(group), dist.get_world_size(group), local_rank)
        self.world = self.world._replace(local_size=count_equal(self, socket.gethostname()))

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all ranks, as a new tensor."""
        total = self._reachable(values.clone())
        dist.all_reduce(total, group=self._group)
        return total.to(values.device)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors`` with rank 0's, one after the other."""
        for tensor in tensors:
            sent = self._reachable(tensor)
            dist.broadcast(sent, self._root, group=self._group)
            if sent is not tensor:
                tensor.copy_(sent)

    def _reachable(self, tensor: Tensor) -> Tensor:
        """Return ``tensor`` on a device that the library supports: NCCL sends no CPU tensors, as of a CPU stage."""
        return tensor.to(self.device) if dist.get_backend(self._group) == "nccl" else tensor

    def close(self) -> None:
        """Wait for all ranks and destroy the group.

        The garbage collection deletes the reducer of a DistributedDataParallel before the group. Without it, Gloo ranks
        of torch 2.13 occasionally abort at exit ("terminate called without an active exception").
        """
        # After this reduction, all ranks have called close, and no message is in flight.
        self.all_reduce_sum(torch.zeros(1, device=self.device))
        gc.collect()
        dist.destroy_process_group(self._group)
        self._group = None  # the last reference to a group of a session: its threads end


def open_default_group(
    world: World,
    device: torch.device,
    *,
    backend: str,
    init_method: str,
    master: tuple[str, int] | None,
    agent_restart: int | None,
    timeout: float,
) -> TorchCommunicator:
    """Open the default process group, wait for all ranks, and return this rank's communicator.

    Args:
        world: rank, size and local rank from the launcher.
        device: device of this rank.
        backend: torch's name of the library: gloo, nccl, mpi.
        init_method: ``env://`` or a URL that torch supports; ignored if ``master`` is given.
        master: address and port at which rank 0, or torchrun's agent, listens; None to let torch find the store.
        agent_restart: number of restarts by torchrun's agent, if the agent listens there; None if rank 0 listens, or
            if torch finds the store.
        timeout: seconds that ranks wait for each other, both to join and in each operation.

    Raises:
        JoinError: if the ranks cannot connect.
    """
    limit = timedelta(seconds=timeout)
    listens = "rank 0" if agent_restart is None else "torchrun"
    place = f"{master[0]}:{master[1]} (MASTER_ADDR:MASTER_PORT), where {listens} listens" if master else init_method
    try:
        with _noted(f"rank {world.rank} of {world.size} waits for all ranks to join at {place}"):
            dist.init_process_group(
                backend,
                store=_store(*master, world, limit, agent_restart) if master else None,
                init_method=None if master else init_method,
                rank=world.rank,
                world_size=world.size,
                timeout=limit,
            )
            # The constructor runs the first collective operation, in which NCCL connects.
            return TorchCommunicator(None, device, local_rank=world.local_rank)
    except (RuntimeError, ValueError, OSError) as error:  # DistError is a RuntimeError
        reason = one_line(str(error).partition("\n")[0]) or type(error).__name__
        raise JoinError(rank=world.rank, size=world.size, reason=reason) from error


@contextmanager
def _noted(wait: str) -> Iterator[None]:
    """Log the message ``wait`` and its duration at intervals until the body has ended."""
    began, over = time.monotonic(), threading.Event()

    def tell() -> None:
        pause = FIRST_WARNING_SECONDS
        while not over.wait(pause):
            warn(log, "waiting-for-ranks", "%s; elapsed: %.0f s", wait, time.monotonic() - began)
            pause = WARNING_INTERVAL_SECONDS

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _store(address: str, port: int, world: World, timeout: timedelta, agent_restart: int | None) -> Any:
    """Return the store of the rendezvous.

    Rank 0 listens only on the address that the other ranks use, and not on all interfaces as torch would. The store of
    torchrun's agent outlives a restart (--max-restarts), so each restart uses a separate prefix: ranks must not read
    entries of dead ranks.
    """
    listener = None
    if world.is_root and agent_restart is None:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        try:
            listener = socket.create_server((address, port), family=family, backlog=world.size)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "")  # in torch's format: job scripts then try another port
            raise OSError(f"cannot listen at {address}, port: {port}, {name}: {error.strerror}") from error
    store = dist.TCPStore(  # type: ignore[attr-defined] # torch's stubs leave it out
        address,
        port,
        world.size,
        is_master=listener is not None,
        timeout=timeout,
        master_listen_fd=listener.detach() if listener else None,
    )
    return store if agent_restart is None else dist.PrefixStore(f"restart {agent_restart}", store)  # type: ignore[attr-defined]

"""The ranks that a script has joined already, for a group of its own to talk over."""

from __future__ import annotations

import atexit
import gc
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from slipway.dist.communicator import Alone, Communicator
from slipway.dist.torch_distributed import TorchCommunicator
from slipway.base.environment import Environment
from slipway.base.errors import NotJoinedError

CPU = torch.device("cpu")


def adopt_ranks(environment: Environment, *, timeout: float) -> Communicator:
    """Return this rank's end of a group of all ranks, apart from the one over which the script trains.

    It is of Gloo, over which a message does not wait for the GPU. A script that has joined Horovod's world shares that.

    Args:
        environment: of this process.
        timeout: seconds that the ranks wait for each other.

    Raises:
        NotJoinedError: if the script has joined no world, and a launcher started more than this process.
        AloneError: if it has joined a world of this process alone.
        WorldSizeError: if the world has another size than planned.
    """
    comm: Communicator = Alone(CPU)
    if dist.is_available() and dist.is_initialized():
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        comm = TorchCommunicator(group, CPU, local_rank=environment.local_rank)
    elif under_horovod():
        from slipway.dist.horovod import HorovodCommunicator  # noqa: PLC0415 -- only where it is installed

        comm = HorovodCommunicator(lambda _: CPU, owned=False)
    elif siblings := environment.siblings:
        raise NotJoinedError(found=f"{siblings.variable}={siblings.value} ({siblings.launcher})")
    environment.check_size(comm.world.size)
    return comm


def require_joined(comm: Communicator) -> None:
    """Raise a NotJoinedError if the script has joined other ranks since ``comm`` was adopted."""
    if comm.world.size == 1 and (ranks := count_ranks()) > 1:
        raise NotJoinedError(found=f"the process group has {ranks} ranks")


def count_ranks() -> int:
    """Return the size of the world that the script has joined; 1 if it has joined none."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return sys.modules["horovod.torch"].size() if under_horovod() else 1


def under_horovod() -> bool:
    """Return whether the script has joined Horovod's world."""
    hvd = sys.modules.get("horovod.torch")
    return bool(hvd and hvd.is_initialized())


def leave_at_exit() -> None:
    """Destroy the process group when the script exits, which may not do that itself, if it still is there then.

    Without that, gloo ranks of torch 2.13 now and then abort at exit.
    """
    atexit.register(_leave)


def _leave() -> None:
    gc.collect()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()

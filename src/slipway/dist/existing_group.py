"""Create a communicator among ranks that a user script has already joined."""

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
    """Return a communicator over all ranks, separate from the script's own group.

    It uses a Gloo group, in which messages do not wait for the GPU. If the script has joined Horovod's world, the
    communicator uses that world. If the script has joined no ranks, it is an ``Alone``. All ranks must call this.

    Args:
        environment: of this process.
        timeout: seconds that the ranks wait for each other.

    Raises:
        NotJoinedError: if the script has joined no world, but a launcher started several processes.
        SingleProcessError: if the script has joined a world of one process, but a launcher started several.
        WorldSizeError: if the world size differs from the planned one.
    """
    comm: Communicator = Alone(CPU)
    if dist.is_available() and dist.is_initialized():
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        comm = TorchCommunicator(group, CPU, local_rank=environment.local_rank)
    elif under_horovod():
        from slipway.dist.horovod import HorovodCommunicator  # noqa: PLC0415 -- only if it is installed

        comm = HorovodCommunicator(lambda _: CPU, owned=False)
    elif siblings := environment.siblings:
        raise NotJoinedError(found=f"{siblings.variable}={siblings.value} ({siblings.launcher})")
    environment.check_size(comm.world.size)
    return comm


def require_joined(comm: Communicator) -> None:
    """Raise NotJoinedError if the script has joined other ranks after ``adopt_ranks`` returned ``comm``."""
    if comm.world.size == 1 and (ranks := count_ranks()) > 1:
        raise NotJoinedError(found=f"the process group has {ranks} ranks")


def count_ranks() -> int:
    """Return the size of the world that the script has joined, or 1 if it has joined none."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return sys.modules["horovod.torch"].size() if under_horovod() else 1


def under_horovod() -> bool:
    """Return whether the script has joined Horovod's world."""
    hvd = sys.modules.get("horovod.torch")
    return bool(hvd and hvd.is_initialized())


def destroy_group_at_exit() -> None:
    """Register an exit handler that destroys the process group if the script has not done so.

    Without it, Gloo ranks of torch 2.13 occasionally abort at exit.
    """
    atexit.register(_leave)


def _leave() -> None:
    gc.collect()
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()

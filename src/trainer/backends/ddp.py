"""torch's DistributedDataParallel, over NCCL on GPUs and Gloo on CPUs."""

from __future__ import annotations

import gc
import inspect
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainer.backends.base import count_alike, pick_device
from trainer.config import Launch, Settings
from trainer.errors import ConfigError, TrainerError
from trainer.world import World, ranks_from_environment

_OPTIONS = inspect.signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = (
    "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"
)  # up to torch 2.12
LOCAL_BUFFERS: dict[str, Any] = {_SYNC_BUFFERS: False}
"""Evaluation and checkpoints use rank 0's buffers; sending them to the others in each step gains nothing."""


class JoinError(TrainerError):
    """The ranks do not find each other: a node that did not start, a network that is down, a port that is taken."""

    final = False


class DDPBackend:
    """One rank of a torch.distributed process group."""

    name = "ddp"

    def __init__(self, settings: Settings) -> None:
        """Open the group, waiting for all ranks."""
        rank, size, local_rank = ranks_from_environment(os.environ)
        self.device = pick_device(settings.launch.device, local_rank=local_rank)
        if settings.model.sync_bn and self.device.type != "cuda":
            raise ConfigError("model.sync_bn needs GPUs: torch has SyncBatchNorm for CUDA only.")
        self._sync_bn = settings.model.sync_bn
        # Over NCCL, a node without its GPU could not even say so.
        library = "gloo" if settings.launch.self_test else library_for(settings.launch, self.device)
        timeout = timedelta(seconds=settings.launch.collective_timeout)
        try:
            store, method = _store(settings.launch.init_method, rank=rank, size=size, timeout=timeout)
            dist.init_process_group(
                library, store=store, init_method=method, rank=rank, world_size=size, timeout=timeout
            )
            # The first collective operation, in which NCCL connects.
            here = count_alike(socket.gethostname(), rank=rank, size=size, total=self.total, device=self.device)
        except (RuntimeError, ValueError, OSError) as error:  # DistError is a RuntimeError
            raise JoinError(f"rank {rank} of {size} cannot join the others: {str(error).splitlines()[0]}") from error
        self.world = World(rank, size, local_rank, here)

    def prepare(
        self, model: nn.Module, optimizer: Optimizer, rehearse: Callable[[nn.Module], None]
    ) -> tuple[nn.Module, Optimizer]:
        """Wrap the model.

        DDP re-lays its gradient buckets after its first backward pass, and another layout sums in another order. With
        that pass behind it, a resumed run adds up exactly as the uninterrupted one did.
        """
        if self._sync_bn:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.broadcast(list(model.buffers()))  # up to torch 2.12, broadcast_buffers=False leaves them as they are
        replica = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            **LOCAL_BUFFERS,
        )
        rehearse(replica)
        return replica, optimizer

    def accumulate(self, replica: nn.Module) -> AbstractContextManager[None]:
        """Skip the reduction, which the next backward pass outside makes up for."""
        return cast("AbstractContextManager[None]", cast("DistributedDataParallel", replica).no_sync())

    def reduced_gradients(self, optimizer: Optimizer) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: the last backward pass has reduced them."""
        return nullcontext()

    def total(self, values: Tensor) -> Tensor:
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
        exception"): the replica's reducer must be gone before the group is.
        """
        self.total(torch.zeros(1, device=self.device))  # all have come here, and hold nothing that is still on its way
        gc.collect()
        dist.destroy_process_group()


def library_for(launch: Launch, device: torch.device) -> str:
    """Return torch's name of the library over which ranks on ``device`` train."""
    if launch.dist_backend != "auto":
        return launch.dist_backend
    return "nccl" if device.type == "cuda" else "gloo"


def _store(init_method: str, *, rank: int, size: int, timeout: timedelta) -> tuple[Any, str | None]:
    """Return the store of the rendezvous, or else the method by which torch finds one.

    torchrun keeps a store of its own. Where we open it (a job script started one process per rank), rank 0 listens on
    the address that the others were given, not on all interfaces as torch would.
    """
    if init_method != "env://" or "TORCHELASTIC_RUN_ID" in os.environ:
        return None, init_method
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise ConfigError(f"--init-method env:// needs {' and '.join(missing)}: where rank 0 listens.")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    listener = None
    if rank == 0:
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((address, port), family=family, backlog=size)
    store = dist.TCPStore(  # type: ignore[attr-defined] # torch's stubs leave it out
        address,
        port,
        size,
        is_master=rank == 0,
        timeout=timeout,
        master_listen_fd=listener.detach() if listener else None,
    )
    return store, None

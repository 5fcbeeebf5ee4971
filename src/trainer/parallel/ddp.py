"""The ddp backend: torch's DistributedDataParallel, over NCCL on GPUs and Gloo on CPUs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from slipway.base.environment import Environment, Launcher
from slipway.dist.communicator import Communicator
from slipway.dist.torch_distributed import open_default_group
from trainer.config.errors import ConfigError
from trainer.config.settings import Settings
from trainer.parallel.device import pick_device
from trainer.parallel.strategy import torch_backend

_OPTIONS = inspect.signature(DistributedDataParallel).parameters
_SYNC_BUFFERS = (
    "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"
)  # up to torch 2.12
NO_BUFFER_SYNC: dict[str, Any] = {_SYNC_BUFFERS: False}
"""Options that skip the broadcast of buffers in each step: evaluation and checkpoints use rank 0's buffers anyway."""


class DDPStrategy:
    """Strategy that reduces gradients in buckets during the backward pass."""

    name = "ddp"

    def __init__(self, settings: Settings) -> None:
        """Use ``settings`` for devices, process group and batch norm."""
        self._settings = settings
        self._sync_bn = settings.model.sync_bn

    def join(self, environment: Environment, waiting: AbstractContextManager[None]) -> Communicator:
        """Open the default process group."""
        launch = self._settings.launch
        world = environment.world()
        device = pick_device(self._settings, world.local_rank, environment.launcher)
        agent_restart = environment.agent_restart if environment.launcher is Launcher.TORCHRUN else None
        torch_rendezvous = environment.launcher is Launcher.TORCHRUN and agent_restart is None
        by_variables = launch.init_method == "env://" and not torch_rendezvous
        if self._sync_bn and device.type != "cuda":
            raise ConfigError("no-gpu", "model.sync_bn needs GPUs: torch has SyncBatchNorm for CUDA only.")
        with waiting:
            return open_default_group(
                world,
                device,
                # Over NCCL, a node without its GPU could not report this to the selftest.
                backend="gloo" if launch.selftest else torch_backend(launch.dist_backend, device),
                init_method=launch.init_method,
                master=environment.master() if by_variables else None,
                agent_restart=agent_restart,
                timeout=launch.collective_timeout,
            )

    def prepare(
        self, comm: Communicator, model: nn.Module, optimizer: Optimizer, warm_up: Callable[[nn.Module], None]
    ) -> tuple[nn.Module, Optimizer]:
        """Wrap the model in DistributedDataParallel, and run its first pass.

        DDP lays out its gradient buckets again after its first backward pass, and another layout sums in another order.
        The warm-up does that pass, so that a resumed run sums exactly as an uninterrupted one.
        """
        if self._sync_bn:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        comm.broadcast(list(model.buffers()))  # up to torch 2.12, broadcast_buffers=False does not broadcast them
        replica = DistributedDataParallel(
            model,
            device_ids=[comm.device] if comm.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=self._settings.model.find_unused_parameters,
            **NO_BUFFER_SYNC,
        )
        warm_up(replica)
        return replica, optimizer

    def no_sync(self, replica: nn.Module) -> AbstractContextManager[None]:
        """Skip the reduction within this context; the next backward pass outside it reduces all gradients."""
        return cast("AbstractContextManager[None]", cast("DistributedDataParallel", replica).no_sync())

    def synchronized_gradients(self, optimizer: Optimizer) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: the last backward pass has reduced the gradients."""
        return nullcontext()

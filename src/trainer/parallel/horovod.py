"""The horovod backend: Horovod's DistributedOptimizer, over its own Gloo controller or over MPI."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

from torch import nn
from torch.optim import Optimizer

from slipway.base.environment import Environment
from slipway.base.slugs import EXIT_FAILED
from slipway.dist.communicator import Communicator
from trainer.config.errors import ConfigError
from trainer.config.settings import Settings
from trainer.parallel.device import pick_device

try:
    import horovod.torch as hvd

    from slipway.dist.horovod import HorovodCommunicator
except ImportError as error:
    raise ConfigError(
        "no-horovod",
        f"--backend horovod needs Horovod built for this torch, but Horovod cannot be imported ({error}): "
        "build it with `build/setup horovod`, or use an image.",
    ) from error


def _exit_on_timeout(limit: float) -> NoReturn:
    text = (
        f"trainer: error[cannot-join]: Horovod's ranks have not connected within {limit:.0f} s "
        "(--collective-timeout): check for a rank that did not start, or for a network that is down.\n"
    )
    with contextlib.suppress(OSError):  # the terminal is gone
        os.write(2, text.encode())
    os._exit(EXIT_FAILED)


class HorovodStrategy:
    """Strategy that reduces each gradient as soon as the backward pass has computed it."""

    name = "horovod"

    def __init__(self, settings: Settings) -> None:
        """Check that ``settings`` need nothing that Horovod does not support."""
        if settings.model.sync_bn:
            raise ConfigError(
                "conflicting-settings",
                "model.sync_bn needs --backend ddp: Horovod cannot convert a model's batch norm layers.",
            )
        if settings.model.channels_last is True:
            raise ConfigError(
                "conflicting-settings",
                "model.channels_last needs another --backend: Horovod sends contiguous gradients only.",
            )
        self._settings = settings
        self._micro_steps = settings.train.grad_accum_steps
        self._compression = hvd.Compression.fp16 if settings.run.fp16_compression else hvd.Compression.none

    def join(self, environment: Environment, waiting: AbstractContextManager[None]) -> Communicator:
        """Join Horovod's world, or end this process: Horovod itself would wait forever for a missing rank."""
        limit = self._settings.launch.collective_timeout
        timer = threading.Timer(limit, _exit_on_timeout, [limit])
        timer.daemon = True
        timer.start()
        try:
            with waiting:
                return HorovodCommunicator(
                    lambda world: pick_device(self._settings, world.local_rank, environment.launcher)
                )
        finally:
            timer.cancel()

    def prepare(
        self,
        comm: Communicator,  # noqa: ARG002 -- Horovod keeps its own world
        model: nn.Module,
        optimizer: Optimizer,
        warm_up: Callable[[nn.Module], None],  # noqa: ARG002 -- Horovod lays out its buffers again in each step
    ) -> tuple[nn.Module, Optimizer]:
        """Wrap the optimizer, whose hooks reduce each gradient during the last backward pass of a step.

        The optimizer's state is still empty here, and resuming fills it on all ranks. ``broadcast_optimizer_state`` is
        not used: it would pickle the state, after a step of its own that changes momentum and step counts.
        """
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model, hvd.DistributedOptimizer(
            optimizer,
            named_parameters=model.named_parameters(),
            compression=self._compression,
            backward_passes_per_step=self._micro_steps,
        )

    def no_sync(self, replica: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: Horovod counts the backward passes, and ``synchronize`` reduces the rest of a short step."""
        return nullcontext()

    @contextmanager
    def synchronized_gradients(self, optimizer: Any) -> Iterator[None]:
        """Wait for the gradients' reductions; the optimizer step within the context does not wait again."""
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            yield

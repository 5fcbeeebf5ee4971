"""One process, no group."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from torch import nn
from torch.optim import Optimizer

from slipway.base.environment import Environment
from slipway.dist.communicator import Alone, Communicator
from trainer.config.errors import ConfigError
from trainer.config.settings import Settings
from trainer.parallel.device import pick_device


class SingleStrategy:
    """One rank trains by itself."""

    name = "single"

    def __init__(self, settings: Settings) -> None:
        """Check what one process cannot do."""
        self._settings = settings
        if settings.model.sync_bn:
            raise ConfigError(
                "conflicting-settings",
                "model.sync_bn needs --backend ddp: one process has no other samples to look at.",
            )

    def join(
        self,
        environment: Environment,
        waiting: AbstractContextManager[None],  # noqa: ARG002 -- for no one
    ) -> Communicator:
        """Take this process for the whole world."""
        return Alone(pick_device(self._settings, 0, environment.launcher))

    def prepare(
        self,
        comm: Communicator,  # noqa: ARG002 -- no other rank
        model: nn.Module,
        optimizer: Optimizer,
        warm_up: Callable[[nn.Module], None],  # noqa: ARG002 -- nothing to settle
    ) -> tuple[nn.Module, Optimizer]:
        """Return both unchanged."""
        return model, optimizer

    def no_sync(self, replica: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: nothing is ever reduced."""
        return nullcontext()

    def synchronized_gradients(self, optimizer: Optimizer) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: the gradients are complete."""
        return nullcontext()

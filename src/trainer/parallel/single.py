"""The single backend: one process without a process group."""

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
    """Strategy for one rank alone."""

    name = "single"

    def __init__(self, settings: Settings) -> None:
        """Check that ``settings`` need only one process."""
        self._settings = settings
        if settings.model.sync_bn:
            raise ConfigError(
                "conflicting-settings",
                "model.sync_bn needs --backend ddp: one process has no other ranks to synchronize with.",
            )

    def join(
        self,
        environment: Environment,
        waiting: AbstractContextManager[None],  # noqa: ARG002 -- no other rank
    ) -> Communicator:
        """Return a communicator for a world of this process alone."""
        return Alone(pick_device(self._settings, 0, environment.launcher))

    def prepare(
        self,
        comm: Communicator,  # noqa: ARG002 -- no other rank
        model: nn.Module,
        optimizer: Optimizer,
        warm_up: Callable[[nn.Module], None],  # noqa: ARG002 -- needs no warm-up
    ) -> tuple[nn.Module, Optimizer]:
        """Return model and optimizer unchanged."""
        return model, optimizer

    def no_sync(self, replica: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: one rank has no reductions."""
        return nullcontext()

    def synchronized_gradients(self, optimizer: Optimizer) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: the gradients are complete."""
        return nullcontext()

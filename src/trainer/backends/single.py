"""One process, no group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.backends.base import pick_device
from trainer.config import Settings
from trainer.errors import ConfigError
from trainer.world import World


class SingleBackend:
    """A world of one rank."""

    name = "single"

    def __init__(self, settings: Settings) -> None:
        """Take this process for the whole world."""
        if settings.model.sync_bn:
            raise ConfigError("model.sync_bn needs --backend ddp: one process has no other samples to look at.")
        self.world = World()
        self.device = pick_device(settings.launch.device, local_rank=0)

    def prepare(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        rehearse: Callable[[nn.Module], None],  # noqa: ARG002 -- nothing to settle
    ) -> tuple[nn.Module, Optimizer]:
        """Return both unchanged."""
        return model, optimizer

    def accumulate(self, replica: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: nothing is ever reduced."""
        return nullcontext()

    def reduced_gradients(self, optimizer: Optimizer) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: the gradients are complete."""
        return nullcontext()

    def total(self, values: Tensor) -> Tensor:
        """Return the values."""
        return values

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Rank 0 has them already."""

    def close(self) -> None:
        """There is no group."""

"""Interface of the training backends single, ddp and horovod; ``connect`` selects one and joins the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from slipway.base.environment import Environment
from slipway.base.stop import StopRequest
from slipway.dist.communicator import Communicator
from trainer.config.errors import ConfigError
from trainer.config.settings import Launch, Settings


class Strategy(Protocol):
    """A way to train one model on all ranks: wraps model and optimizer, and averages gradients."""

    name: str
    """The backend's value of --backend."""

    def prepare(
        self, comm: Communicator, model: nn.Module, optimizer: Optimizer, warm_up: Callable[[nn.Module], None]
    ) -> tuple[nn.Module, Optimizer]:
        """Return the replica to call and the optimizer to step, on all ranks of ``comm`` with rank 0's state.

        ``warm_up(replica)`` runs one forward and backward pass and does not change the model. A strategy that fixes its
        communication during a first pass calls it, so that all later passes are alike.
        """
        ...

    def no_sync(self, replica: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which backward passes add to this rank's gradients without a reduction."""
        ...

    def synchronized_gradients(self, optimizer: Optimizer) -> AbstractContextManager[None]:
        """Return a context in which each ``.grad`` is the mean over all ranks, to unscale, clip and step."""
        ...


class Backend(Strategy, Protocol):
    """A strategy that also connects the ranks."""

    def join(self, environment: Environment, waiting: AbstractContextManager[None]) -> Communicator:
        """Join the world that the launcher describes, and return this rank's communicator.

        Check this rank's own settings first, and then wait for the other ranks within ``waiting``.
        """
        ...


def connect(
    settings: Settings, environment: Environment, request: StopRequest | None = None
) -> tuple[Communicator, Strategy]:
    """Join the world that the launcher describes; return this rank's communicator and strategy.

    Args:
        settings: of the launch.
        environment: of this process.
        request: stop request that ends this process while it waits for the other ranks; None if signals do so anyway.

    Raises:
        SlipwayError: if the launcher's variables are missing or contradict the backend or the plan, or if the ranks
            cannot connect to each other.
    """
    name = settings.launch.backend
    if name == "auto":
        name = "ddp" if environment.is_ranked else "single"
    _reject_conflicts(settings, name)
    strategy: Backend
    match name:
        case "ddp":
            from trainer.parallel.ddp import DDPStrategy  # noqa: PLC0415 -- each library loads only if it is used

            strategy = DDPStrategy(settings)
        case "horovod":
            from trainer.parallel.horovod import HorovodStrategy  # noqa: PLC0415

            strategy = HorovodStrategy(settings)
        case _:
            from trainer.parallel.single import SingleStrategy  # noqa: PLC0415

            strategy = SingleStrategy(settings)
    waiting = request.exit_on_request("trainer") if request else contextlib.nullcontext()
    comm = strategy.join(environment, waiting)
    environment.check_size(comm.world.size)
    return comm, strategy


def torch_backend(dist_backend: str, device: torch.device) -> str:
    """Return torch's name of the communication backend for ranks on ``device`` with this --dist-backend."""
    if dist_backend != "auto":
        return dist_backend
    return "nccl" if device.type == "cuda" else "gloo"


def resolved(launch: Launch, comm: Communicator, strategy: Strategy, stages: list[list[str]]) -> dict[str, object]:
    """Return the resolved settings of the launch, for run.json.

    ``stages``: for each rank, its node and the device of each stage; [] for a model that is not split.
    """
    found = {"backend": strategy.name, "device": comm.device.type, "threads": torch.get_num_threads()}
    return {**asdict(launch), **found, "stages": stages}


def _reject_conflicts(settings: Settings, backend: str) -> None:
    """Raise a ConfigError for settings that ``backend`` would ignore, and for settings that exclude each other."""
    if settings.run.fp16_compression and backend != "horovod":
        raise ConfigError(
            "conflicting-settings",
            f"run.fp16_compression works with --backend horovod only; {backend} does not compress gradients.",
        )
    if settings.launch.dist_backend != "auto" and backend != "ddp":
        raise ConfigError(
            "conflicting-settings",
            f"launch.dist_backend works with --backend ddp only; {backend} has its own communication.",
        )
    for name in ("sync_bn", "compile"):
        if settings.model.split and getattr(settings.model, name):
            raise ConfigError(
                "conflicting-settings", f"model.split and model.{name} exclude each other: stages run separately."
            )
        if settings.model.recompute and getattr(settings.model, name):
            raise ConfigError(
                "conflicting-settings",
                f"model.recompute and model.{name} exclude each other: blocks are computed twice.",
            )
    if settings.launch.memory and not settings.launch.dry_run:
        raise ConfigError("conflicting-settings", "launch.memory requires launch.dry_run: set --dry-run --memory.")
    if settings.launch.profile and settings.launch.dry_run:
        raise ConfigError(
            "conflicting-settings",
            "launch.profile and launch.dry_run exclude each other: a dry run writes no files.",
        )
    if settings.model.sync_bn and settings.train.grad_accum_steps > 1:
        raise ConfigError(
            "conflicting-settings",
            "model.sync_bn and train.grad_accum_steps > 1 exclude each other: ranks would wait for each other in each "
            "micro-batch, but an incomplete batch gives them different numbers of micro-batches.",
        )

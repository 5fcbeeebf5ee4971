"""How processes train together. ``open_backend`` joins them; everything else sees only the Backend protocol."""

from __future__ import annotations

import os
from dataclasses import asdict

import torch

from trainer.backends.base import Backend
from trainer.config import Settings
from trainer.errors import ConfigError
from trainer.world import check_size

__all__ = ["Backend", "describe", "open_backend"]


def open_backend(settings: Settings) -> Backend:
    """Join the world that the launcher describes, and return this process's end of it.

    Raises:
        ConfigError: if the launcher's variables are missing or contradict the backend or the plan.
    """
    name = settings.launch.backend
    if name == "auto":
        name = "ddp" if "RANK" in os.environ else "single"
    _refuse_unused(settings, name)
    backend: Backend
    match name:
        case "ddp":
            from trainer.backends.ddp import DDPBackend  # noqa: PLC0415 -- each backend's library loads only if used

            backend = DDPBackend(settings)
        case "horovod":
            from trainer.backends.horovod import HorovodBackend  # noqa: PLC0415

            backend = HorovodBackend(settings)
        case _:
            from trainer.backends.single import SingleBackend  # noqa: PLC0415

            backend = SingleBackend(settings)
    check_size(backend.world.size, os.environ)
    return backend


def describe(settings: Settings, backend: Backend) -> dict[str, object]:
    """Return the settings of the launch as they were resolved, for run.json."""
    launch = asdict(settings.launch)
    return {**launch, "backend": backend.name, "device": backend.device.type, "threads": torch.get_num_threads()}


def _refuse_unused(settings: Settings, backend: str) -> None:
    """Raise a ConfigError for a setting that ``backend`` would silently leave out."""
    if settings.run.fp16_compression and backend != "horovod":
        raise ConfigError(f"run.fp16_compression is of --backend horovod; {backend} would not compress anything.")
    if settings.launch.dist_backend != "auto" and backend != "ddp":
        raise ConfigError(f"launch.dist_backend is of --backend ddp; {backend} has its own communication.")
    if settings.model.sync_bn and settings.train.grad_accum_steps > 1:
        raise ConfigError(
            "model.sync_bn and train.grad_accum_steps > 1 exclude each other: ranks would wait for each other's "
            "micro-batches, of which a ragged batch gives them different numbers."
        )

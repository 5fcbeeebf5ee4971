"""How processes train together. ``open_backend`` joins them; everything else sees only the Backend protocol."""

from __future__ import annotations

import os

from trainer.backends.base import Backend
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.world import check_size

__all__ = ["Backend", "open_backend"]


def open_backend(config: Config) -> Backend:
    """Join the world that the launcher describes, and return this process's end of it.

    Raises:
        ConfigError: if the launcher's variables are missing or contradict the backend or the plan.
    """
    name = config.run.backend
    if name == "auto":
        name = "ddp" if "RANK" in os.environ else "single"
    _refuse_unused(config, name)
    backend: Backend
    match name:
        case "ddp":
            from trainer.backends.ddp import DDPBackend  # noqa: PLC0415 -- each backend's library loads only if used

            backend = DDPBackend(config)
        case "horovod":
            from trainer.backends.horovod import HorovodBackend  # noqa: PLC0415

            backend = HorovodBackend(config)
        case _:
            from trainer.backends.single import SingleBackend  # noqa: PLC0415

            backend = SingleBackend(config)
    check_size(backend.world.size, os.environ)
    return backend


def _refuse_unused(config: Config, backend: str) -> None:
    """Raise a ConfigError for a setting that ``backend`` would silently leave out."""
    if config.run.fp16_compression and backend != "horovod":
        raise ConfigError(f"run.fp16_compression is of --backend horovod; {backend} would not compress anything.")
    if config.run.dist_backend != "auto" and backend != "ddp":
        raise ConfigError(f"run.dist_backend is of --backend ddp; {backend} has its own communication.")
    if config.model.sync_bn and config.train.grad_accum_steps > 1:
        raise ConfigError(
            "model.sync_bn and train.grad_accum_steps > 1 exclude each other: ranks would wait for each other's "
            "micro-batches, of which a ragged batch gives them different numbers."
        )

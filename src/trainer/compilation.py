"""--compile: torch.compile in place, and whether it has compiled anything."""

from __future__ import annotations

import logging
import os
import shutil
from typing import Any

import torch
from torch import nn

from trainer.errors import ConfigError

log = logging.getLogger(__name__)


def compile_in_place(model: nn.Module, device: torch.device) -> None:
    """Let calls of ``model`` be compiled; names in checkpoints stay those of the bare model.

    nn.Module.compile does that, but nothing for an nn.Sequential and other modules whose ``forward`` is torch's own:
    Dynamo compiles no frames of torch's files. Around their calls there is one of this file.

    Args:
        model: on ``device``.
        device: for which code is made.

    Raises:
        ConfigError: if that is the CPU, and there is no C++ compiler.
    """
    compiler = os.environ.get("CXX", "g++")
    if device.type == "cpu" and not shutil.which(compiler):
        raise ConfigError(
            f"--compile needs a C++ compiler, and there is no {compiler} here: install one, name another by CXX, or "
            "train in the image, which has one."
        )
    if type(model).forward.__module__.startswith("torch."):

        def call(*args: Any, **kwargs: Any) -> Any:
            return model._call_impl(*args, **kwargs)  # noqa: SLF001 -- as nn.Module.compile does

        model._compiled_call_impl = torch.compile(call)  # noqa: SLF001 -- likewise
    else:
        model.compile()


def warn_if_not_compiled() -> None:
    """Say so where nothing was compiled in this process, as of a model whose ``forward`` opts out of it."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 -- half a second of imports that other runs do without

    if not counters["stats"]["unique_graphs"]:
        log.warning("--compile: torch.compile has found nothing in the model to compile; it was trained as it is")

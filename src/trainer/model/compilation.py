"""--compile: torch.compile in place, what it needs, and whether it has compiled anything."""

from __future__ import annotations

import logging
import shutil
import socket
from typing import Any

import torch
from torch import nn

from slipway.base.errors import warn
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator
from trainer.config.errors import ConfigError

log = logging.getLogger(__name__)


def require_compiler(comm: Communicator) -> None:
    """Raise a ConfigError, on every rank, if the model is to be compiled for CPUs, and a node has no C++ compiler."""
    from torch._inductor import config  # noqa: PLC0415 -- imports that other runs do without

    compiler: str = config.cpp.cxx[-1]  # of the variable CXX
    is_missing = comm.device.type == "cpu" and not shutil.which(compiler)
    hosts = [host for host in all_gather_json(comm, socket.gethostname() if is_missing else None) if host]
    if hosts:
        error = ConfigError(
            "no-compiler",
            f"--compile needs a C++ compiler, and there is no {compiler!r} on {', '.join(sorted(set(hosts)))}: install "
            "one, name another by CXX, or train in the image, which has one.",
        )
        error.raised_on_all_ranks = True
        raise error


def compile_in_place(model: nn.Module) -> None:
    """Let calls of ``model`` be compiled; names in checkpoints stay those of the bare model.

    nn.Module.compile does that, but nothing for an nn.Sequential and other modules whose ``forward`` is torch's own:
    Dynamo compiles no frames of torch's files. Around their calls there is one of this file.
    """
    home = getattr(getattr(type(model), "forward", None), "__module__", None) or ""  # code that torch.fx wrote has none
    if home.startswith("torch."):

        def call(*args: Any, **kwargs: Any) -> Any:
            return model._call_impl(*args, **kwargs)  # noqa: SLF001 -- as nn.Module.compile does

        model._compiled_call_impl = torch.compile(call)  # noqa: SLF001 -- likewise
    else:
        model.compile()


def warn_if_not_compiled() -> None:
    """Say so where nothing was compiled in this process, as of a model whose ``forward`` opts out of it."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 -- half a second of imports that other runs do without

    if not counters["stats"]["unique_graphs"]:
        warn(
            log,
            "nothing-compiled",
            "--compile: torch.compile has found nothing in the model to compile; it was trained as it is",
        )

"""Support for --compile: check for a compiler, compile in place, warn if nothing was compiled."""

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
    """Raise a ConfigError on every rank if the device is a CPU and a node has no C++ compiler."""
    from torch._inductor import config  # noqa: PLC0415 -- slow to import, and only --compile needs it

    compiler: str = config.cpp.cxx[-1]  # from the environment variable CXX
    is_missing = comm.device.type == "cpu" and not shutil.which(compiler)
    hosts = [host for host in all_gather_json(comm, socket.gethostname() if is_missing else None) if host]
    if hosts:
        raise ConfigError(
            "no-compiler",
            f"--compile needs a C++ compiler, but {compiler!r} is missing on {', '.join(sorted(set(hosts)))}: install "
            "it, set CXX to another compiler, or train in the image, which contains one.",
            raised_on_all_ranks=True,
        )


def compile_in_place(model: nn.Module) -> None:
    """Compile calls of ``model`` in place; names in checkpoints stay those of the bare model.

    nn.Module.compile has no effect on nn.Sequential and other modules whose ``forward`` is defined in torch, because
    Dynamo does not compile frames of torch's files. Their calls are wrapped in a function of this file.
    """
    home = getattr(getattr(type(model), "forward", None), "__module__", None) or ""  # torch.fx code has no module
    if home.startswith("torch."):

        def call(*args: Any, **kwargs: Any) -> Any:
            return model._call_impl(*args, **kwargs)  # noqa: SLF001 -- as nn.Module.compile does

        model._compiled_call_impl = torch.compile(call)  # noqa: SLF001 -- as nn.Module.compile does
    else:
        model.compile()


def warn_if_not_compiled() -> None:
    """Warn if this process has compiled nothing, for example because the model's ``forward`` disables compilation."""
    from torch._dynamo.utils import counters  # noqa: PLC0415 -- takes half a second; only --compile needs it

    if not counters["stats"]["unique_graphs"]:
        warn(
            log,
            "nothing-compiled",
            "--compile: torch.compile found nothing to compile in the model; it was trained uncompiled",
        )

"""What ``auto`` stands for: mixed precision, and the memory layout that goes with it, where devices are faster so.

Rank 0 decides at the start of a run, by what its device says it can and never by timing, so that the same machine
decides the same. Checkpoints hold what was decided, and a run that is resumed keeps it, on other hardware too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch

from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.header import Header
from slipway.communicator import Communicator
from slipway.communicator.collectives import broadcast_json, run_on_root
from trainer.amp import AMP_TYPES
from trainer.checkpoint import CONFIG
from trainer.config import Config
from trainer.errors import ConfigError
from trainer.plugin import SEPARATOR

AUTO = "auto"
PLAIN = {"amp": "none", "channels_last": False}
"""What each key is where nothing else is known to be right and faster, and was before there was auto."""
BF16_CAPABILITY = (8, 0)
"""The first GPUs whose tensor cores multiply bf16: NVIDIA A100 Tensor Core GPU Architecture, 2020."""
BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
"""What multiplies bf16 in CPUs, as torch.cpu.get_capabilities names it; the last one is of ARM."""
DEVICES = {"cpu": "CPU", "cuda": "GPU"}
C = TypeVar("C", bound=Config)
log = logging.getLogger(__name__)


def settle(config: C, comm: Communicator, *, backend: str, checkpoint: Checkpoint | None) -> C:
    """Return ``config`` with a value for each auto; all ranks must call this.

    Args:
        config: the experiment, the same on all ranks.
        comm: of this rank.
        backend: that trains it.
        checkpoint: on rank 0, what is resumed, None there for a run that begins. Ignored on other ranks.

    Raises:
        ConfigError: on every rank, if the checkpoint has no such value.
    """
    asked = {"amp": config.train.amp, "channels_last": config.model.channels_last}
    if AUTO not in asked.values():
        return config

    def decide() -> dict[str, Any]:
        values = saved(checkpoint.header) if checkpoint else fastest(config, comm.device, backend=backend)
        why = "as the checkpoint has it" if checkpoint else f"by what this {DEVICES[comm.device.type]} computes fast"
        log.info("auto, %s: %s", why, ", ".join(f"{key} {values[key]}" for key in asked if asked[key] == AUTO))
        return values

    return settled(config, broadcast_json(comm, run_on_root(comm, decide)))


def settled(config: C, values: Mapping[str, Any]) -> C:
    """Return ``config`` with those of ``values`` in place of auto."""
    train, model = config.train, config.model
    if train.amp == AUTO:
        train = replace(train, amp=values["amp"])
    if model.channels_last == AUTO:
        model = replace(model, channels_last=values["channels_last"])
    return replace(config, train=train, model=model)


def saved(header: Header) -> dict[str, Any]:
    """Return what the run of a checkpoint computed with.

    Raises:
        ConfigError: if its manifest holds something else in that place.
    """
    tables = header.facts.get(CONFIG, {})
    try:
        amp = tables.get("train", {}).get("amp", PLAIN["amp"])
        channels_last = tables.get("model", {}).get("channels_last", PLAIN["channels_last"])
    except AttributeError:  # no tables
        amp = channels_last = None
    if amp not in [*AMP_TYPES] or not isinstance(channels_last, bool):
        raise ConfigError("the manifest of the checkpoint is damaged: it says no train.amp and model.channels_last.")
    return {"amp": amp, "channels_last": channels_last}


def fastest(config: Config, device: torch.device, *, backend: str) -> dict[str, Any]:
    """Return what is fastest for ``config`` on ``device``.

    bf16 has the range of float32, so that no loss needs scaling. A model of somebody's own is trained as it is
    written: it may depend on the types or the strides of its tensors.
    """
    if SEPARATOR in config.model.arch:
        return PLAIN
    amp = config.train.amp
    if amp == AUTO:
        amp = "bf16" if config.train.dtype == "float32" and multiplies_bf16(device) else "none"
    return {"amp": amp, "channels_last": amp != "none" and backend != "horovod"}


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether ``device`` says that it does so in hardware."""
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= BF16_CAPABILITY
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.10 does not say
    return any(capabilities.get(name) for name in BF16_INSTRUCTIONS)

"""Resolution of the setting ``auto``: mixed precision, memory layout and image decoder.

A new run resolves ``auto`` from the capabilities that its devices report, never from timing, so that the same machines
give the same values. Checkpoints hold the values. A resumed run keeps them, also on other hardware.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch

from slipway.base.errors import warn
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header
from slipway.dist.collectives import broadcast_json, run_on_root, sum_numbers
from slipway.dist.communicator import Communicator
from trainer.config.errors import ConfigError
from trainer.config.plugin import SEPARATOR
from trainer.config.settings import Settings
from trainer.engine.checkpoint import CONFIG
from trainer.optim.amp import AMP_TYPES

AUTO = "auto"
DECODER = "data.decoder"
PLAIN: Mapping[str, Any] = {"train.amp": "none", "model.channels_last": False, DECODER: "pil"}
"""Keys that may be auto, with their plain values, which a checkpoint that is older than a key has used."""
VALUES: Mapping[str, list[Any]] = {
    "train.amp": [*AMP_TYPES],
    "model.channels_last": [False, True],
    DECODER: ["pil", "simplejpeg"],
}
"""Valid values of each key after resolution."""
BF16_CAPABILITY = (8, 0)
"""Lowest compute capability whose tensor cores multiply bf16: NVIDIA A100 Tensor Core GPU Architecture, 2020."""
BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
"""CPU instruction sets that multiply bf16, as torch.cpu.get_capabilities names them; the last one is ARM's."""

log = logging.getLogger(__name__)


def settle(settings: Settings, comm: Communicator, *, backend: str, checkpoint: Checkpoint | None) -> Settings:
    """Return ``settings`` with each ``auto`` replaced by a value; all ranks must call this.

    Args:
        settings: the same on all ranks.
        comm: this rank's communicator.
        backend: name of the training backend.
        checkpoint: on rank 0, the checkpoint to resume from, or None for a new run. Ignored on other ranks.

    Raises:
        ConfigError: on every rank, if the checkpoint lacks a valid value.
    """
    asked = auto_keys(settings)
    here = supports_bf16(comm.device)
    if not asked:
        warn_of_slow_bf16(settings.train.amp, comm.device, here=here)
        return settings
    everywhere = sum_numbers(comm, [not here]) == [0]

    def decide() -> dict[str, Any]:
        values = saved(checkpoint.header) if checkpoint else values_for_devices(settings, bf16=everywhere)
        if backend == "horovod":  # Horovod sends contiguous gradients only
            values["model.channels_last"] = False
        said = ", ".join(f"{key} {str(values[key]).lower()}" for key in asked if key != DECODER or has_files(settings))
        if said:
            log.info("auto: %s%s", said, ", as in the checkpoint" if checkpoint else "")
        return values

    found = settled(settings, broadcast_json(comm, run_on_root(comm, decide)))
    warn_of_slow_bf16(found.train.amp, comm.device, here=here)
    return found


def warn_of_slow_bf16(amp: str, device: torch.device, *, here: bool) -> None:
    """Warn if ``amp`` is bf16 and ``device`` emulates it; ``here``: the device multiplies bf16 in hardware.

    Do not warn about a CPU whose instruction sets torch does not report.
    """
    if amp != "bf16" or here:
        return
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    elif capabilities := cpu_capabilities():
        name = f"the CPU ({capabilities.get('cpu_name', platform.machine())})"
    else:
        return
    warn(log, "slow-bf16", "%s emulates bf16, which is slow: set --amp none, or use other nodes", name)


def auto_keys(settings: Settings) -> list[str]:
    """Return the keys whose value is auto."""
    return [key for key in PLAIN if attrgetter(key)(settings) == AUTO]


def settled(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return ``settings`` with each auto replaced by its entry in ``values``."""
    for key in auto_keys(settings):
        section, name = key.split(".")
        part = replace(getattr(settings, section), **{name: values[key]})
        settings = replace(settings, **{section: part})
    return settings


def saved(header: Header) -> dict[str, Any]:
    """Return the values that a checkpoint's run has used.

    Raises:
        ConfigError: if the checkpoint's manifest holds an invalid value.
    """
    values = {}
    for key, plain in PLAIN.items():
        section, name = key.split(".")
        try:
            value = header.facts[CONFIG].get(section, {}).get(name, plain)
        except (KeyError, AttributeError):  # no tables
            value = None
        if type(value) is not type(plain) or value not in VALUES[key]:
            raise ConfigError("damaged-checkpoint", f"the checkpoint's manifest is damaged: it has no valid {key}.")
        values[key] = value
    return values


def values_for_devices(settings: Settings, *, bf16: bool) -> dict[str, Any]:
    """Return the values for a new run; ``bf16``: all devices multiply it in hardware.

    bf16 has the range of float32, so the loss needs no scaling. A user-defined model is trained as written, because it
    may depend on the dtypes or strides of its tensors. Autocast supports one device type only.
    """
    decoder = "simplejpeg" if has_files(settings) and importlib.util.find_spec("simplejpeg") else "pil"
    if SEPARATOR in settings.model.arch:
        return {**PLAIN, DECODER: decoder}
    amp = settings.train.amp
    if amp == AUTO:
        kinds = {name.partition(":")[0] for name in (settings.launch.stage_devices or "").split(",")}
        amp = "bf16" if bf16 and settings.train.dtype == "float32" and len(kinds) == 1 else "none"
    return {"train.amp": amp, "model.channels_last": amp != "none", DECODER: decoder}


def has_files(settings: Settings) -> bool:
    """Return whether the samples are image files."""
    return settings.data.dataset == "imagefolder"


def supports_bf16(device: torch.device) -> bool:
    """Return whether ``device`` reports that it multiplies bf16 in hardware."""
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= BF16_CAPABILITY
    return any(cpu_capabilities().get(name) for name in BF16_INSTRUCTIONS)


def cpu_capabilities() -> Mapping[str, Any]:
    """Return the capabilities of this machine's CPU as torch reports them; empty with torch 2.10, which has no API."""
    return getattr(torch.cpu, "get_capabilities", dict)()

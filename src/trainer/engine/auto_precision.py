"""What ``auto`` stands for: mixed precision, and the memory layout that goes with it, where devices are faster so.

It is decided when a run begins, by what the devices of its ranks say they can and never by timing, so that the same
machines decide the same. Checkpoints hold what was decided, and a run that is resumed keeps it, on other hardware too.
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
"""The keys that may be auto, with their defaults before there was auto."""
VALUES: Mapping[str, list[Any]] = {
    "train.amp": [*AMP_TYPES],
    "model.channels_last": [False, True],
    DECODER: ["pil", "simplejpeg"],
}
"""What each may become."""
BF16_CAPABILITY = (8, 0)
"""The first GPUs whose tensor cores multiply bf16: NVIDIA A100 Tensor Core GPU Architecture, 2020."""
BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
"""What multiplies bf16 in CPUs, as torch.cpu.get_capabilities names it; the last one is of ARM."""

log = logging.getLogger(__name__)


def settle(settings: Settings, comm: Communicator, *, backend: str, checkpoint: Checkpoint | None) -> Settings:
    """Return ``settings`` with a value for each auto; all ranks must call this.

    Args:
        settings: the same on all ranks.
        comm: of this rank.
        backend: that trains.
        checkpoint: on rank 0, what is resumed, None there for a run that begins. Ignored on other ranks.

    Raises:
        ConfigError: on every rank, if the checkpoint has no such value.
    """
    asked = left_to_auto(settings)
    here = multiplies_bf16(comm.device)
    if not asked:
        warn_of_slow_bf16(settings, comm.device, here=here)
        return settings
    everywhere = sum_numbers(comm, [not here]) == [0]

    def decide() -> dict[str, Any]:
        values = saved(checkpoint.header) if checkpoint else by_hardware(settings, bf16=everywhere)
        if backend == "horovod":  # it sends contiguous gradients only
            values["model.channels_last"] = False
        said = ", ".join(f"{key} {str(values[key]).lower()}" for key in asked if key != DECODER or has_files(settings))
        if said:
            log.info("auto: %s%s", said, ", as the checkpoint has it" if checkpoint else "")
        return values

    found = settled(settings, broadcast_json(comm, run_on_root(comm, decide)))
    warn_of_slow_bf16(found, comm.device, here=here)
    return found


def warn_of_slow_bf16(settings: Settings, device: torch.device, *, here: bool) -> None:
    """Warn if ``settings`` compute in bf16, which ``device`` emulates unless ``here``.

    Nothing is said of a CPU whose instructions torch does not name.
    """
    if settings.train.amp != "bf16" or here:
        return
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    elif capabilities := cpu_capabilities():
        name = f"the CPU ({capabilities.get('cpu_name', platform.machine())})"
    else:
        return
    warn(log, "slow-bf16", "%s emulates bf16, which is slow: --amp none, or other nodes", name)


def left_to_auto(settings: Settings) -> list[str]:
    """Return the keys that are auto."""
    return [key for key in PLAIN if attrgetter(key)(settings) == AUTO]


def settled(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return ``settings`` with those of ``values`` in place of auto."""
    for key in left_to_auto(settings):
        section, name = key.split(".")
        part = replace(getattr(settings, section), **{name: values[key]})
        settings = replace(settings, **{section: part})
    return settings


def saved(header: Header) -> dict[str, Any]:
    """Return the values with which the run of a checkpoint has computed.

    Raises:
        ConfigError: if its manifest has something else in their place.
    """
    values, tables = dict(PLAIN), header.facts.get(CONFIG, {})
    for key, plain in PLAIN.items():
        section, name = key.split(".")
        try:
            value = tables.get(section, {}).get(name, plain)
        except AttributeError:  # no tables
            value = None
        if type(value) is not type(plain) or value not in VALUES[key]:
            raise ConfigError("damaged-checkpoint", f"the manifest of the checkpoint is damaged: it says no {key}.")
        values[key] = value
    return values


def by_hardware(settings: Settings, *, bf16: bool) -> dict[str, Any]:
    """Return the values for a new run, on devices that all multiply ``bf16``, or not.

    bf16 has the range of float32, so that no loss needs scaling. A model of somebody's own is trained as it is
    written: it may depend on the types or the strides of its tensors. Autocast is for one type of devices.
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


def multiplies_bf16(device: torch.device) -> bool:
    """Return whether ``device`` says that it does so in hardware."""
    if device.type == "cuda":
        return torch.version.hip is None and torch.cuda.get_device_capability(device) >= BF16_CAPABILITY
    return any(cpu_capabilities().get(name) for name in BF16_INSTRUCTIONS)


def cpu_capabilities() -> Mapping[str, Any]:
    """Return what torch says of this machine's CPU; nothing by torch 2.10, which does not say."""
    return getattr(torch.cpu, "get_capabilities", dict)()

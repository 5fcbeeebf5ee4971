"""Resolution of the setting ``auto``: mixed precision, memory layout and image decoder.

A new run resolves ``auto`` from the capabilities that its devices report and the FLOP of its model, never from timing,
so that the same machines give the same values. Checkpoints hold the values. A resumed run keeps them, also on other
hardware, with another batch size and on another number of ranks.
"""

from __future__ import annotations

import importlib.util
import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from slipway.base.errors import warn
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header
from slipway.dist.collectives import broadcast_json, run_on_root, sum_numbers
from slipway.dist.communicator import Communicator
from trainer.config.errors import ConfigError
from trainer.config.plugin import SEPARATOR, reason_of
from trainer.config.settings import Settings
from trainer.data.training_batches import micro_batch_size
from trainer.engine.checkpoint import CONFIG
from trainer.model import Shape
from trainer.optim.amp import AMP_TYPES

AUTO = "auto"
AMP, LAYOUT, DECODER = "train.amp", "model.channels_last", "data.decoder"
PLAIN: Mapping[str, Any] = {AMP: "none", LAYOUT: False, DECODER: "pil"}
"""Keys that may be auto, with their plain values, which a checkpoint that is older than a key has used."""
VALUES: Mapping[str, list[Any]] = {
    AMP: [*AMP_TYPES],
    LAYOUT: [False, True],
    DECODER: ["pil", "simplejpeg"],
}
"""Valid values of each key after resolution."""
BF16_CAPABILITY = (8, 0)
"""Lowest compute capability whose tensor cores multiply bf16: NVIDIA A100 Tensor Core GPU Architecture, 2020."""
BF16_FLOP_PER_OPERATOR = 2e9
"""Minimum FLOP per operator for bf16 and NHWC on a GPU. Below it, kernel launches dominate, and autocast adds more.

From an H100, all rows of "float32 and bf16 with NHWC" in docs/explanation/gpu.md: ResNet-50 at 224 with batch 128
(6.7 GFLOP an operator) is 2.08 times as fast in bf16, the MNIST CNN with batch 64 (0.13) slower. The nearest rows have
1.9 (ResNet-18 at 224, batch 32: equal) and 3.4 (ResNet-50, batch 64: 1.37 times as fast).
"""
BF16_INSTRUCTIONS = ("amx_bf16", "avx512_bf16", "bf16")
"""CPU instruction sets that multiply bf16, as torch.cpu.get_capabilities names them; the last one is ARM's."""

log = logging.getLogger(__name__)


def settle_decoder(settings: Settings, comm: Communicator, *, checkpoint: Checkpoint | None) -> Settings:
    """Return ``settings`` with a decoder, which opening the data needs, in place of ``auto``; all ranks must call this.

    The arguments and errors are those of ``settle_precision``.
    """
    if settings.data.decoder != AUTO:
        return settings

    def decide() -> dict[str, Any]:
        fast = has_files(settings) and importlib.util.find_spec("simplejpeg")
        return {DECODER: saved(checkpoint.header)[DECODER] if checkpoint else "simplejpeg" if fast else "pil"}

    return _agree(settings, comm, decide, resumed=checkpoint is not None)


def settle_precision(
    settings: Settings,
    comm: Communicator,
    model: nn.Module,
    *,
    shape: Shape,
    backend: str,
    checkpoint: Checkpoint | None,
) -> Settings:
    """Return ``settings`` with precision and memory layout in place of ``auto``; all ranks must call this.

    Args:
        settings: the same on all ranks.
        comm: this rank's communicator.
        model: in training mode; not changed.
        shape: channels, height, width.
        backend: name of the training backend.
        checkpoint: on rank 0, the checkpoint to resume from, or None for a new run. Ignored on other ranks.

    Raises:
        ConfigError: on every rank, if the checkpoint lacks a valid value.
    """
    here = supports_bf16(comm.device)
    if AUTO in (settings.train.amp, settings.model.channels_last):
        everywhere = sum_numbers(comm, [not here]) == [0]

        def decide() -> dict[str, Any]:
            if checkpoint:
                values = saved(checkpoint.header)
            else:
                values = values_for_run(
                    settings, bf16=lambda: everywhere and bf16_is_faster(settings, comm, model, shape)
                )
            # Horovod sends contiguous gradients only.
            return {AMP: values[AMP], LAYOUT: values[LAYOUT] and backend != "horovod"}

        settings = _agree(settings, comm, decide, resumed=checkpoint is not None)
    warn_of_slow_bf16(settings.train.amp, comm.device, here=here)
    return settings


def _agree(settings: Settings, comm: Communicator, decide: Callable[[], dict[str, Any]], *, resumed: bool) -> Settings:
    """Return ``settings`` with the values that ``decide`` returns on rank 0, which logs them."""

    def decide_and_log() -> dict[str, Any]:
        values = decide()
        asked = [key for key in auto_keys(settings) if key in values and (key != DECODER or has_files(settings))]
        if asked:
            said = ", ".join(f"{key} {str(values[key]).lower()}" for key in asked)
            log.info("auto: %s%s", said, ", as in the checkpoint" if resumed else "")
        return values

    return settled(settings, broadcast_json(comm, run_on_root(comm, decide_and_log)))


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
    """Return ``settings`` with each auto replaced by its entry in ``values``, if it has one."""
    for key in values.keys() & set(auto_keys(settings)):
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


def values_for_run(settings: Settings, *, bf16: Callable[[], bool]) -> dict[str, Any]:
    """Return precision and memory layout of a new run; ``bf16``: whether all devices have it, and it should be faster.

    bf16 has the range of float32, so the loss needs no scaling. A user-defined model is trained as written, because it
    may depend on the dtypes or strides of its tensors. Autocast supports one device type only.
    """
    amp = settings.train.amp
    if SEPARATOR in settings.model.arch:
        return {AMP: "none", LAYOUT: False}
    if amp == AUTO:
        kinds = {name.partition(":")[0] for name in (settings.launch.stage_devices or "").split(",")}
        amp = "bf16" if settings.train.dtype == "float32" and len(kinds) == 1 and bf16() else "none"
    return {AMP: amp, LAYOUT: amp != "none"}


def bf16_is_faster(settings: Settings, comm: Communicator, model: nn.Module, shape: Shape) -> bool:
    """Return whether a step is expected to be faster in bf16 and NHWC, on devices that multiply bf16.

    On a GPU the operators of the largest micro-batch must be large enough (BF16_FLOP_PER_OPERATOR). A model that cannot
    be counted gets bf16, like every model on a CPU: there operators have no launch to wait for, and bf16 also halved
    the step of small models (docs/decisions/0026).
    """
    if comm.device.type != "cuda":
        return True
    from trainer.model.meta import count_flop  # noqa: PLC0415 -- most runs count nothing

    samples = max(2, micro_batch_size(settings.train, comm.world.size))  # batch norm needs two
    try:
        flop, operators = count_flop(model, [samples, *shape])
    except Exception as error:  # noqa: BLE001 -- a model may do anything with its tensors
        log.info("auto: cannot count the FLOP of %s: %s", settings.model.arch, reason_of(error))
        return True
    log.info("auto: %.2f GFLOP per operator", flop / operators / 1e9)
    return flop / operators >= BF16_FLOP_PER_OPERATOR


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

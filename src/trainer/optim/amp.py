"""Mixed precision: autocast for --amp, and loss scaling for fp16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.optim import Optimizer

AMP_TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(amp: str, device: torch.device) -> AbstractContextManager[Any]:
    """Return the autocast context for forward passes on ``device`` with --amp ``amp``."""
    dtype = AMP_TYPES[amp]
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def gradient_scaler(device: torch.device, amp: str) -> torch.amp.GradScaler:
    """Return the loss scaler; it is disabled unless ``amp`` is fp16."""
    return torch.amp.GradScaler(device.type, enabled=amp == "fp16")


def skip_on_all_devices(optimizer: Optimizer) -> None:
    """Make a fused ``optimizer`` with parameters on several devices skip a step if gradients on two of them hold inf.

    GradScaler passes the number of such devices as ``found_inf``, but torch's fused kernels skip only if it is 1.
    """
    optimizer.register_step_pre_hook(_clamp_found_inf)


def _clamp_found_inf(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if (found_inf := getattr(optimizer, "found_inf", None)) is not None:
        optimizer.found_inf = found_inf.clamp(max=1)

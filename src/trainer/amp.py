"""Mixed precision: the type of --amp, and the scaling of the loss that fp16 needs."""

from __future__ import annotations

import torch

AMP_TYPES = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(amp: str, device: torch.device) -> torch.autocast:
    """Return the context of forward passes on ``device`` with --amp ``amp``."""
    dtype = AMP_TYPES[amp]
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def gradient_scaler(device: torch.device, amp: str) -> torch.amp.GradScaler:
    """Return the loss scaler, which does nothing unless ``amp`` is fp16."""
    return torch.amp.GradScaler(device.type, enabled=amp == "fp16")

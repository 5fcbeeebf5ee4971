"""Optimisers of torch that compute wrong weights after GradScaler has skipped a step."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from torch.amp import GradScaler
from torch.optim import SGD

from slipway.errors import warn

log = logging.getLogger(__name__)


def warn_of_skipping(optimizers: Mapping[str, Any], scalers: Iterable[Any]) -> None:
    """Warn of each optimiser, by its name, that must not be used with one of ``scalers`` as it is now.

    Args:
        optimizers: of torch, or with the methods of one; also in Accelerate's wrapper.
        scalers: of the loss; objects of other types are ignored.
    """
    if not any(isinstance(scaler, GradScaler) and scaler.is_enabled() for scaler in scalers):
        return
    for name, given in optimizers.items():
        if fault := _fault(getattr(given, "optimizer", given)):
            warn(
                log,
                "unsafe-fused-optimizer",
                "%s: under GradScaler %s; build it with foreach=True or fused=False",
                name,
                fault,
            )


def _fault(optimizer: Any) -> str:
    """Return what goes wrong if the next step of ``optimizer`` is skipped; "" if nothing does.

    GradScaler leaves the skipping to fused optimisers. tests/fused_steps.py has what each of them does with it.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return ""
    groups = optimizer.param_groups
    if len({parameter.device for group in groups for parameter in group["params"]}) > 1:
        return "a fused optimiser takes a step in which gradients on two devices overflow"
    trained = [(group, parameter) for group in groups for parameter in group["params"] if parameter.requires_grad]
    if isinstance(optimizer, SGD) and any(group["momentum"] and not optimizer.state.get(p) for group, p in trained):
        return "a fused SGD continues with momentum that was never written if its first step is skipped"
    return ""

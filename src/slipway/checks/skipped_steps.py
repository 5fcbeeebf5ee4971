"""GradScaler: detection of skipped steps, and a warning for fused optimizers that then compute wrong weights."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from torch.amp import GradScaler
from torch.optim import SGD

from slipway.base.errors import warn
from slipway.state.optimizer_attributes import parameters_in
from slipway.state.steps import inner_optimizer

log = logging.getLogger(__name__)


def warn_of_skipping(optimizers: Mapping[str, Any], scalers: Iterable[Any]) -> None:
    """Warn of each optimizer that is unsafe with a GradScaler in its current configuration.

    Args:
        optimizers: by name, optimizers of torch or with the same methods, possibly in Accelerate's wrapper.
        scalers: GradScalers; objects of other types are ignored.
    """
    if not any(isinstance(scaler, GradScaler) and scaler.is_enabled() for scaler in scalers):
        return
    for name, given in optimizers.items():
        if fault := _fault(inner_optimizer(given)):
            warn(
                log,
                "unsafe-fused-optimizer",
                "%s: with GradScaler, %s; construct it with foreach=True or fused=False",
                name,
                fault,
            )


def _fault(optimizer: Any) -> str:
    """Return the fault that occurs if the next step of ``optimizer`` is skipped, as text; "" if none does.

    GradScaler leaves the skipping to fused optimizers. tests/fused_steps.py shows the behavior of each of them.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return ""
    if len({parameter.device for parameter in parameters_in(optimizer)}) > 1:
        return "a fused optimizer takes a step even if gradients on two devices overflow"
    trained = [
        (group, parameter)
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.requires_grad
    ]
    if isinstance(optimizer, SGD) and any(group["momentum"] and not optimizer.state.get(p) for group, p in trained):
        return "a fused SGD continues with uninitialized momentum if its first step is skipped"
    return ""


SMALLEST_SCALE = 2.0**-14
"""Smallest normal number of float16. A scaler below it has skipped many consecutive steps and will skip all others."""


class Scalers:
    """Detects steps that a script's GradScalers have skipped, by periodic reads of their state."""

    def __init__(self, scalers: Iterable[Any]) -> None:
        """Read the state of ``scalers``, ignoring disabled scalers and other objects, which never skip steps."""
        self._scalers = [each for each in scalers if isinstance(each, GradScaler) and each.is_enabled()]
        self._seen = self._look()

    def __bool__(self) -> bool:
        """Return whether an enabled GradScaler exists."""
        return bool(self._scalers)

    def have_skipped(self) -> bool:
        """Return whether a scaler has skipped steps since the last call and may still recover; waits for the GPU.

        A skipped step lowers the scale and resets its growth counter.
        """
        before, self._seen = self._seen, self._look()
        return any(
            now != then and (now[0] < then[0] or now[1] < then[1]) and now[0] >= SMALLEST_SCALE
            for then, now in zip(before, self._seen, strict=True)
        )

    def _look(self) -> list[tuple[float, int]]:
        """Return, for each scaler, the scale and the number of steps since it last changed."""
        states = [scaler.state_dict() for scaler in self._scalers]
        return [(state["scale"], state["_growth_tracker"]) for state in states]

"""GradScaler: steps that it skips, and fused optimizers of torch that compute wrong weights after one."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from torch.amp import GradScaler
from torch.optim import SGD

from slipway.base.errors import warn

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


SMALLEST_SCALE = 2.0**-14
"""Smallest number that float16 holds in full. A scaler below it has skipped step after step, and skips for ever."""


class Scalers:
    """The scalers of a script, seen once in a while."""

    def __init__(self, scalers: Iterable[Any]) -> None:
        """Look at ``scalers`` for the first time; those that are not enabled, or of another type, skip nothing."""
        self._scalers = [each for each in scalers if isinstance(each, GradScaler) and each.is_enabled()]
        self._seen = self._look()

    def __bool__(self) -> bool:
        """Return whether there is one."""
        return bool(self._scalers)

    def have_skipped(self) -> bool:
        """Return whether one has skipped steps since the last call, and may take the next one; waits for the GPU.

        A skipped step lowers the scale, and lets its growth begin anew.
        """
        before, self._seen = self._seen, self._look()
        return any(
            now != then and (now[0] < then[0] or now[1] < then[1]) and now[0] >= SMALLEST_SCALE
            for then, now in zip(before, self._seen, strict=True)
        )

    def _look(self) -> list[tuple[float, int]]:
        """Return of each scaler the scale, and the steps since that changed."""
        states = [scaler.state_dict() for scaler in self._scalers]
        return [(state["scale"], state["_growth_tracker"]) for state in states]

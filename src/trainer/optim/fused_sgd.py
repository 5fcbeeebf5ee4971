"""SGD by torch's fused kernel, corrected for steps in which some parameters have no momentum yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD


class FusedSGD(SGD):
    """torch.optim.SGD(fused=True) with the results of ``foreach=True``.

    Up to torch 2.13 at least, a fused step takes the parameters of a group for all new or all old, by their momentum
    buffers:

    - All new, and GradScaler found inf: the kernel returns before it writes the buffers that were just allocated. The
      next step takes them for momentum, and continues with whatever the memory held.
    - Some new, as parameters that were not used in the first steps: TypeError.

    Fused Adam, AdamW and Adagrad start from zeros that are written when they are allocated, and are correct
    (tests/fused_steps.py).
    """

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step; while a parameter with a gradient has no momentum, GradScaler's verdict is read on the host.

        Args:
            closure: computes the gradients anew, and returns the loss.

        Returns:
            Any: what ``closure`` returned; None without one.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        new = self._without_momentum()
        if not new:
            super().step()
        elif not self._is_skipped():
            groups = self.param_groups
            self.param_groups = [part for group in groups for part in _parts(group, new)]
            try:
                super().step()
            finally:
                self.param_groups = groups
        return loss

    def _without_momentum(self) -> set[Tensor]:
        """Return the parameters that this step would give a momentum buffer."""
        if len(self.state) == sum(len(group["params"]) for group in self.param_groups):
            return set()
        return {
            parameter
            for group in self.param_groups
            if group["momentum"]
            for parameter in group["params"]
            if parameter.grad is not None and not self.state.get(parameter)
        }

    def _is_skipped(self) -> bool:
        """Return whether GradScaler, which sets ``found_inf`` during a step, found inf or nan in a gradient."""
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        return found_inf is not None and bool(found_inf)


def _parts(group: dict[str, Any], new: set[Tensor]) -> Iterator[dict[str, Any]]:
    """Yield ``group`` as two: its parameters that are ``new``, and the others."""
    for is_new in (True, False):
        yield {**group, "params": [parameter for parameter in group["params"] if (parameter in new) is is_new]}

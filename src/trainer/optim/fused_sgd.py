"""Fused SGD of torch, corrected for steps in which some parameters have no momentum buffer yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD


class FusedSGD(SGD):
    """torch.optim.SGD(fused=True) with the results of ``foreach=True``.

    Up to torch 2.13 at least, a fused step assumes that either all or none of a group's parameters have momentum
    buffers:

    - If none have, and GradScaler found inf, the kernel returns before it writes the newly allocated buffers. The next
      step uses this uninitialized memory as momentum.
    - If only some have, for example because the first steps did not use the other parameters: TypeError.

    Fused Adam, AdamW and Adagrad allocate zeroed buffers and are correct (tests/fused_steps.py).
    """

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step.

        While a parameter with a gradient has no momentum buffer, the step reads GradScaler's ``found_inf`` on the host.

        Args:
            closure: recomputes the gradients and returns the loss.

        Returns:
            Any: the result of ``closure``; None without a closure.
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
        """Return the parameters for which this step would allocate a momentum buffer."""
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
        """Return whether GradScaler found inf or NaN in a gradient; it sets ``found_inf`` during a step."""
        found_inf: Tensor | None = getattr(self, "found_inf", None)
        return found_inf is not None and bool(found_inf)


def _parts(group: dict[str, Any], new: set[Tensor]) -> Iterator[dict[str, Any]]:
    """Split ``group`` in two: the parameters in ``new``, and the others."""
    for is_new in (True, False):
        yield {**group, "params": [parameter for parameter in group["params"] if (parameter in new) is is_new]}

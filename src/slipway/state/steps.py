"""Counting of optimizer steps without changes to the training loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any


class StepCounter:
    """Counts the steps of each optimizer: calls of its ``step``, or of a GradScaler's ``step`` with that optimizer.

    Only outermost calls count: the step of a subclass that calls ``super().step()`` is one step. The counter replaces
    the method of the instance, because torch's hooks would fire for each class.
    """

    def __init__(self, optimizers: Iterable[Any], before_step: Callable[[Any], None]) -> None:
        """Prepare to count the steps of ``optimizers``; counting begins with ``watch``.

        Args:
            optimizers: optimizers of torch or with the same methods, possibly in Accelerate's wrapper.
            before_step: called with the optimizer before each of its outermost steps without a closure.
        """
        self._before_step = before_step
        self._owners = [inner_optimizer(given) for given in optimizers]
        self._counts = [0] * len(self._owners)
        self._depths = [0] * len(self._owners)
        self._replaced: list[tuple[Any, Any]] = []

    @property
    def is_within(self) -> Any:
        """The optimizer whose outermost step is running; None if no step is running."""
        return next((owner for owner, depth in zip(self._owners, self._depths, strict=True) if depth), None)

    def take(self) -> list[int]:
        """Return the number of steps of each optimizer since the last call."""
        taken, self._counts = self._counts, [0] * len(self._owners)
        return taken

    def watch(self, scalers: Iterable[Any]) -> None:
        """Count steps until ``close``.

        Args:
            scalers: GradScalers. Their ``step`` counts even if it skips the optimizer's step because of inf or nan.
        """
        for number, owner in enumerate(self._owners):
            self._replace(owner, number)
        for scaler in scalers:
            self._replace(scaler, None)

    def close(self) -> None:
        """Restore the original methods."""
        while self._replaced:
            owner, before = self._replaced.pop()
            if before is None:
                del owner.step
            else:
                owner.step = before

    def _number_of(self, optimizer: Any = None) -> int | None:
        return next((number for number, owner in enumerate(self._owners) if owner is inner_optimizer(optimizer)), None)

    def _replace(self, owner: Any, own: int | None) -> None:
        """Replace ``owner.step`` to count steps of optimizer number ``own``; if None, of the optimizer passed to it."""
        inner = owner.step
        self._replaced.append((owner, vars(owner).get("step")))

        @functools.wraps(inner)  # keeps the attributes by which learning-rate schedulers recognize their wrapper
        def counted(_owner: Any, *args: Any, **kwargs: Any) -> Any:
            number = self._number_of(*args[:1]) if own is None else own
            if number is None:
                return inner(*args, **kwargs)
            if not (any(self._depths) or len(args) > (own is None) or kwargs):
                self._before_step(self._owners[number])
            self._depths[number] += 1
            try:
                result = inner(*args, **kwargs)
            finally:
                self._depths[number] -= 1
            if not self._depths[number]:
                self._counts[number] += 1
            return result

        owner.step = MethodType(counted, owner)  # bound, because schedulers read __func__


def inner_optimizer(given: Any) -> Any:
    """Return the optimizer inside Accelerate's wrapper, whose own ``step`` may do nothing."""
    return getattr(given, "optimizer", given)

"""Counting optimiser steps, without a change to the loop that takes them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any


class StepCounter:
    """Counts the steps of each of some optimisers: calls of its ``step``, or of a GradScaler's for it.

    Only outermost calls count: the step of a subclass that calls ``super().step()`` is one. A method of the instance is
    replaced, because hooks of torch would fire for each class.
    """

    def __init__(self, optimizers: Iterable[Any], before_step: Callable[[Any], None]) -> None:
        """Count the steps of ``optimizers``, once they are watched.

        Args:
            optimizers: of torch, or with its methods; also in Accelerate's wrapper.
            before_step: called with the optimiser before each outermost step of it that gets no closure.
        """
        self._before_step = before_step
        self._owners = [unwrapped(given) for given in optimizers]
        self._counts = [0] * len(self._owners)
        self._depths = [0] * len(self._owners)
        self._replaced: list[tuple[Any, Any]] = []

    @property
    def is_within(self) -> Any:
        """The optimiser of the outermost step that runs now; None if none does."""
        return next((owner for owner, depth in zip(self._owners, self._depths, strict=True) if depth), None)

    def take(self) -> list[int]:
        """Return how many steps each optimiser has taken since the last call."""
        taken, self._counts = self._counts, [0] * len(self._owners)
        return taken

    def watch(self, scalers: Iterable[Any]) -> None:
        """Count from now on, until ``close``.

        Args:
            scalers: whose ``step`` counts, too: it skips the optimiser's after gradients of inf or nan.
        """
        for number, owner in enumerate(self._owners):
            self._replace(owner, number)
        for scaler in scalers:
            self._replace(scaler, None)

    def close(self) -> None:
        """Give the objects their methods back."""
        while self._replaced:
            owner, before = self._replaced.pop()
            if before is None:
                del owner.step
            else:
                owner.step = before

    def _number_of(self, optimizer: Any = None) -> int | None:
        return next((number for number, owner in enumerate(self._owners) if owner is unwrapped(optimizer)), None)

    def _replace(self, owner: Any, own: int | None) -> None:
        """Replace ``owner.step``, to count steps of the optimiser with number ``own``, or of the one that it gets."""
        inner = owner.step
        self._replaced.append((owner, vars(owner).get("step")))

        @functools.wraps(inner)  # with the marks by which learning-rate schedulers know their own wrapper
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

        owner.step = MethodType(counted, owner)  # bound: schedulers look for __func__


def unwrapped(given: Any) -> Any:
    """Return the optimiser in Accelerate's wrapper, whose step may do nothing."""
    return getattr(given, "optimizer", given)

"""Counting optimiser steps, without a change to the loop that takes them."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import MethodType
from typing import Any


class StepCounter:
    """Counts the calls of methods of objects, such as ``optimizer.step`` and ``scaler.update``.

    Only outermost calls count: the step of a subclass that calls ``super().step()`` is one. A method of the instance is
    replaced, because hooks of torch would fire for each class.
    """

    def __init__(self) -> None:
        """Count nothing yet."""
        self.count = 0
        self._depth = 0
        self._replaced: list[tuple[Any, str, Any]] = []

    def watch(self, owners: Iterable[Any], method: str) -> None:
        """Count the calls of ``method`` of each of ``owners`` from now on."""
        for given in owners:
            owner = getattr(given, "optimizer", given)  # Accelerate's wrapper has a step that may do nothing
            inner = getattr(owner, method)
            self._replaced.append((owner, method, vars(owner).get(method)))

            @functools.wraps(inner)  # with the marks by which learning-rate schedulers know their own wrapper
            def counted(_owner: Any, *args: Any, _inner: Any = inner, **kwargs: Any) -> Any:
                self._depth += 1
                try:
                    result = _inner(*args, **kwargs)
                finally:
                    self._depth -= 1
                if not self._depth:
                    self.count += 1
                return result

            setattr(owner, method, MethodType(counted, owner))  # bound: schedulers look for __func__

    def close(self) -> None:
        """Give the objects their methods back."""
        while self._replaced:
            owner, method, before = self._replaced.pop()
            if before is None:
                delattr(owner, method)
            else:
                setattr(owner, method, before)

"""Learning-rate schedulers that a script uses and has not given to its session."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch import nn


def unscheduled(optimizer: Any, saved: Sequence[object]) -> bool:
    """Return whether a scheduler works on ``optimizer`` that none of the objects ``saved`` is, nor has within.

    Schedulers refer to their optimizer, or they leave ``initial_lr`` in its groups of parameters. This looks at all
    objects of the process: 25 ms for 300,000.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # of Accelerate's wrapper
    given = [*_with_inner(saved)]
    if any(all(each is not scheduler for each in given) for scheduler in _schedulers_of(inner)):
        return True
    is_marked = any("initial_lr" in group for group in inner.param_groups)
    driven = [set(map(id, optimizers_of(each))) for each in saved]
    return is_marked and all(found and not {id(optimizer), id(inner)} & found for found in driven)


def optimizers_of(scheduler: object) -> Iterator[object]:
    """Yield the optimizers that ``scheduler`` refers to, by itself or by schedulers within."""
    for each in _with_inner([scheduler]):
        for value in _attributes(each):
            if hasattr(value, "param_groups"):
                yield value
                yield getattr(value, "optimizer", value)


def _schedulers_of(optimizer: object) -> Iterator[object]:
    """Yield the objects with a ``step`` and a state of which ``optimizer`` is an attribute, and that wrap none."""
    for holder in gc.get_referrers(optimizer):
        for owner in gc.get_referrers(holder) if type(holder) is dict else [holder]:
            values = getattr(owner, "__dict__", {}).values()
            if any(each is optimizer for each in values) and _is_scheduler(owner):
                yield owner


def _is_scheduler(owner: object) -> bool:
    """Return whether it may be a scheduler: not a model, another optimizer, nor what trains a model."""
    is_other = hasattr(owner, "param_groups") or any(
        isinstance(each, nn.Module) for each in (owner, *_attributes(owner))
    )
    return not is_other and callable(getattr(owner, "step", None)) and callable(getattr(owner, "state_dict", None))


def _with_inner(objects: Iterable[object], depth: int = 3) -> Iterator[object]:
    """Yield ``objects``, and the schedulers within."""
    for each in objects:
        yield each
        if depth:
            inner = [value for value in _attributes(each) if hasattr(value, "state_dict") and hasattr(value, "step")]
            yield from _with_inner(inner, depth - 1)


def _attributes(owner: object) -> Iterator[Any]:
    """Yield the values of its attributes, and what lists and tuples among them contain."""
    for value in [*getattr(owner, "__dict__", {}).values()]:
        yield from value if isinstance(value, (list, tuple)) else [value]

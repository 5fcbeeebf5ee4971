"""Learning-rate schedulers that a script uses and has not given to its session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any


def unscheduled(optimizer: Any, saved: Sequence[object]) -> bool:
    """Return whether a scheduler works on ``optimizer`` that none of the objects ``saved`` can be.

    Schedulers leave ``initial_lr`` in the groups of parameters, those of torch also a wrapper around ``step``. One that
    does neither, such as ReduceLROnPlateau, is not found.
    """
    inner = getattr(optimizer, "optimizer", optimizer)  # of Accelerate's wrapper
    is_scheduled = hasattr(inner.step, "_wrapped_by_lr_sched") or any("initial_lr" in g for g in inner.param_groups)
    if not is_scheduled:
        return False
    driven = [set(map(id, optimizers_of(each))) for each in saved]
    return all(found and not {id(optimizer), id(inner)} & found for found in driven)


def optimizers_of(scheduler: object, depth: int = 3) -> Iterator[object]:
    """Yield the optimizers that ``scheduler`` refers to, by itself or by schedulers within."""
    for value in vars(scheduler).values() if hasattr(scheduler, "__dict__") else ():
        for each in value if isinstance(value, (list, tuple)) else [value]:
            if hasattr(each, "param_groups"):
                yield each
                yield getattr(each, "optimizer", each)
            elif depth and hasattr(each, "state_dict") and hasattr(each, "step"):
                yield from optimizers_of(each, depth - 1)

"""Detection of learning-rate schedulers that a script uses and has not passed to its session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from slipway.state.steps import inner_optimizer


def has_unsaved_scheduler(optimizer: Any, saved: Sequence[object]) -> bool:
    """Return whether a scheduler acts on ``optimizer`` and none of the objects ``saved`` can be that scheduler.

    Schedulers add ``initial_lr`` to parameter groups, and torch's schedulers also wrap ``step``. ``is_missing`` finds
    schedulers that do neither, such as ReduceLROnPlateau.
    """
    inner = inner_optimizer(optimizer)
    is_scheduled = hasattr(inner.step, "_wrapped_by_lr_sched") or any("initial_lr" in g for g in inner.param_groups)
    if not is_scheduled:
        return False
    driven = [set(map(id, optimizers_of(each))) for each in saved]
    return all(found and not {id(optimizer), id(inner)} & found for found in driven)


def is_missing(found: object, optimizer: Any, saved: Iterable[object]) -> bool:
    """Return whether ``found`` is a scheduler of ``optimizer`` that is neither in ``saved`` nor held by one of them."""
    is_other = hasattr(found, "param_groups") or any(
        isinstance(each, nn.Module) for each in (found, *_attributes(found))
    )
    if is_other or not all(callable(getattr(found, name, None)) for name in ("step", "state_dict")):
        return False
    works = any(each is inner_optimizer(optimizer) for each in optimizers_of(found))
    return works and all(each is not found for each in _with_inner(saved))


def schedulers_in(objects: Mapping[str, Mapping[str, object]]) -> list[object]:
    """Return the objects that may set a learning rate, from a session's ``objects`` by kind and name."""
    return [*objects["scheduler"].values(), *(each for each in objects["extra"].values() if any(optimizers_of(each)))]


def optimizers_of(scheduler: object) -> Iterator[object]:
    """Yield the optimizers to which ``scheduler`` or its inner schedulers refer."""
    for each in _with_inner([scheduler]):
        for value in _attributes(each):
            if hasattr(value, "param_groups"):
                yield value
                yield inner_optimizer(value)


def _with_inner(objects: Iterable[object], depth: int = 3) -> Iterator[object]:
    """Yield ``objects`` and their inner schedulers, up to ``depth`` levels deep."""
    for each in objects:
        yield each
        if depth:
            inner = [value for value in _attributes(each) if hasattr(value, "state_dict") and hasattr(value, "step")]
            yield from _with_inner(inner, depth - 1)


def _attributes(owner: object) -> Iterator[Any]:
    """Yield the values of the attributes of ``owner``; of lists and tuples, their items instead."""
    for value in [*getattr(owner, "__dict__", {}).values()]:
        yield from value if isinstance(value, (list, tuple)) else [value]

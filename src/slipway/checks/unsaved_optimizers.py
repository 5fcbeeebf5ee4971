"""Checks for unsaved state of optimizers: parameters outside the session's models, optimizers outside the session."""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from slipway.base.errors import SessionError, warn
from slipway.checkpoint.shards import is_sharded
from slipway.state.optimizer_attributes import address_of, parameters_in, tensors_in, values_in
from slipway.state.pending_gradients import PendingGradients
from slipway.state.steps import StepCounter, inner_optimizer

log = logging.getLogger(__name__)


def require_saved_parameters(
    optimizers: Mapping[str, Any], models: Mapping[str, Any], extra: Mapping[str, Any]
) -> None:
    """Raise a SessionError if an optimizer trains parameters that no checkpoint would contain.

    Args:
        optimizers: the session's optimizers, by name.
        models: the session's models, by name.
        extra: other saved objects, by name.
    """
    tensors = [tensor for model in models.values() for tensor in model.parameters()]
    known = {id(tensor) for tensor in tensors}
    if all(id(parameter) in known for optimizer in optimizers.values() for parameter in parameters_in(optimizer)):
        return
    states = [each.state_dict() for each in extra.values() if hasattr(each, "state_dict")]
    storages = {address_of(tensor) for tensor in (*tensors, *tensors_in(states))} - {0}
    for name, optimizer in optimizers.items():
        groups = getattr(optimizer, "param_groups", ())
        unsaved = [
            f"group {number}, number {place}, {list(parameter.shape)}"
            for number, group in enumerate(groups)
            for place, parameter in enumerate(group["params"])
            if id(parameter) not in known and address_of(parameter) not in storages
        ]
        if unsaved and any(map(is_sharded, tensors)) and not any(map(is_sharded, parameters_in(optimizer))):
            raise SessionError(
                "parameters-not-given",
                f"{name} trains {len(unsaved)} parameter(s) that are not in the sharded model: fully_shard and "
                "parallelize_module replace parameters, so create the optimizer after them. Or also pass their module.",
            )
        if unsaved:
            raise SessionError(
                "parameters-not-given",
                f"{name} trains {len(unsaved)} parameter(s) that no model passed contains ({'; '.join(unsaved[:3])}): "
                'also pass their module, Session(model={"net": net, "other": other}), or a single tensor as '
                "nn.ParameterList([tensor]).",
            )


@dataclass
class Seen:
    """A torch optimizer that has stepped and does not belong to the session."""

    optimizer: weakref.ref[Optimizer]
    outer: tuple[str, Any] | None
    """Name and object of the session's optimizer, if this one steps only within its steps; else None."""
    body: int
    """Number of the loop body of its first step."""
    options: list[dict[str, Any]]
    """Options of its parameter groups after that step."""
    stepped_again: bool = False
    """Whether it has also stepped in a later body."""


class UnsavedOptimizers:
    """Finds optimizers that step and do not belong to the session, by torch's global step hook.

    An optimizer that the script creates in each body, as in the inner loop of MAML, has no state to save.
    """

    def __init__(self, given: Mapping[str, Any], counter: StepCounter, gradients: PendingGradients) -> None:
        """Register the hook.

        Args:
            given: the session's optimizers, by name.
            counter: counts the steps of these optimizers.
            gradients: provides the number of the current body and the models' parameters.
        """
        self._given = {name: inner_optimizer(optimizer) for name, optimizer in given.items()}
        self._counter, self._gradients = counter, gradients
        self._known = {id(each) for each in (*given.values(), *self._given.values())}
        self._seen: dict[int, Seen] = {}
        self._warned: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._hook = register_optimizer_step_post_hook(self._note)

    def close(self) -> None:
        """Remove the hook."""
        self._hook.remove()

    def warn(self) -> None:
        """Warn once of each such optimizer in use, unless a session optimizer saves its state; call this at a save."""
        if any(seen.optimizer() for seen in self._seen.values()):
            gc.collect()  # an optimizer with a scheduler is in a reference cycle
        for key, seen in [*self._seen.items()]:
            optimizer = seen.optimizer()
            if optimizer is None:
                del self._seen[key]
            elif (seen.stepped_again or self._trains_exclusively(optimizer)) and not _is_saved(optimizer, seen):
                self._warned.add(optimizer)
                del self._seen[key]
                self._warn(optimizer, seen.outer)

    def _trains_exclusively(self, optimizer: Optimizer) -> bool:
        """Return whether ``optimizer`` has parameters of session models that no session optimizer has."""
        own = {*map(id, parameters_in(optimizer))}
        given = {id(parameter) for each in self._given.values() for parameter in parameters_in(each)}
        return any(id(parameter) in own - given for parameter in self._gradients.model_parameters)

    def _warn(self, optimizer: Optimizer, outer: tuple[str, Any] | None) -> None:
        warn(
            log,
            "optimizer-not-given",
            'a %s%s steps, but its state is not saved: also pass it, Session(optimizer={"one": ..., "other": ...}); '
            "passed: %s",
            type(optimizer).__name__,
            f" within {outer[0]}" if outer else "",
            ", ".join(self._given),
        )

    def _note(self, optimizer: Optimizer, *_: Any) -> None:
        """Record a step of ``optimizer``."""
        key = id(optimizer)
        if key in self._known or optimizer in self._warned:
            return
        seen, body = self._seen.get(key), self._gradients.bodies
        if seen is None or seen.optimizer() is not optimizer:
            self._seen[key] = Seen(weakref.ref(optimizer), self._outer(), body, _options(optimizer))
            return
        seen.stepped_again |= body > seen.body
        seen.outer = seen.outer and self._outer()

    def _outer(self) -> tuple[str, Any] | None:
        within = self._counter.is_within
        return next(((name, each) for name, each in self._given.items() if each is within), None)


def _options(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the options of the parameter groups, in a form that can be compared."""
    return [
        {key: value.tolist() if isinstance(value, Tensor) else value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def _is_saved(inner: Optimizer, seen: Seen) -> bool:
    """Return whether the session's optimizer within whose steps ``inner`` steps saves all state of ``inner``."""
    if seen.outer is None:
        return False
    outer = seen.outer[1]
    groups = getattr(outer, "param_groups", ())
    if not all(any(group is own for own in groups) for group in inner.param_groups) and _options(inner) != seen.options:
        return False
    if inner.state is getattr(outer, "state", None):
        return True
    saved = [*values_in(outer.state_dict())]
    kept = {id(each) for each in saved if isinstance(each, dict)}
    storages = {0, *(address_of(each) for each in saved if isinstance(each, Tensor))}
    return all(
        id(state) in kept
        or all(isinstance(each, Tensor) and address_of(each) in storages for each in state.values() if each is not None)
        for state in inner.state.values()
    )

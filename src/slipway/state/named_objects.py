"""What a session saves: the objects of a script, by name, each with ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from slipway.base.errors import SessionError
from slipway.checkpoint.components import Stateful
from slipway.rng.generator_state import GENERATORS
from slipway.state.model_state import Model
from slipway.state.module_attributes import ATTRIBUTES, ModuleAttributes
from slipway.state.optimizer_state import OptimizerState
from slipway.state.schedulers import schedulers_in
from slipway.state.wrappers import plain_name

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def named_objects(kind: str, value: Any) -> dict[str, Any]:
    """Return the objects that an argument of a session names: one as ``kind``, several as ``kind.name``.

    Args:
        kind: name of the argument.
        value: an object, a dictionary of some by name, a list or a tuple of some, or None. What has ``state_dict`` and
            ``load_state_dict`` is one object, also if it is a dictionary or a list.

    Raises:
        SessionError: if a name cannot be that of a file.
    """
    if value is None:
        return {}
    if _has_state(value):
        return {kind: value}
    if isinstance(value, (list, tuple)):
        value = {str(number): item for number, item in enumerate(value)}
    if not isinstance(value, Mapping):
        return {kind: value}
    for name in value:
        if not NAME.fullmatch(str(name)):
            raise SessionError("bad-name", f"{kind} has the name {name!r}: use letters, digits, '_', '.' and '-'.")
    return {f"{kind}.{name}": item for name, item in value.items()}


def components_of(objects: Mapping[str, Mapping[str, Any]]) -> dict[str, Stateful]:
    """Return what saves and restores the objects of a session, by name.

    Args:
        objects: by the kinds model, optimizer, scheduler, scaler and extra, as ``named_objects`` returns them.

    Raises:
        SessionError: if an object cannot be saved.
    """
    found: dict[str, Stateful] = {}

    def parameters() -> dict[str, Tensor]:
        return {
            f"{name}/{plain_name(part.module, place)}": tensor
            for name, part in found.items()
            if isinstance(part, Model)
            for place, tensor in part.module.named_parameters()
        }

    schedulers = schedulers_in(objects)
    for named in objects.values():
        for name, value in named.items():
            found[name] = component(name, value, parameters=parameters, schedulers=schedulers)
    modules = {name: part.module for name, part in found.items() if isinstance(part, Model)}
    given = [value for named in objects.values() for value in named.values()]
    return {**found, ATTRIBUTES: ModuleAttributes(modules, given, objects["optimizer"])} if modules else found


def component(
    name: str,
    value: Any,
    *,
    parameters: Callable[[], Mapping[str, Tensor]] = dict,
    schedulers: Sequence[object] = (),
) -> Stateful:
    """Return what saves and restores ``value``.

    Args:
        name: of the component.
        value: a model, an optimizer, a generator, or anything with ``state_dict`` and ``load_state_dict``.
        parameters: returns the parameters of all models by name, for the groups of an optimizer.
        schedulers: that are saved, too.

    Raises:
        SessionError: if nothing can.
    """
    if isinstance(value, nn.Module):
        return Model(name, value)
    if isinstance(value, Optimizer):
        return OptimizerState(name, value, parameters, schedulers)
    for kind, wrapper in GENERATORS.items():
        if isinstance(value, kind):
            wrapped: Stateful = wrapper(value)
            return wrapped
    if _has_state(value):
        stateful: Stateful = value
        return stateful
    raise SessionError(
        "no-state-dict",
        f"{name} is of {type(value).__name__}, which has no state_dict and load_state_dict: pass an object that has.",
    )


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")

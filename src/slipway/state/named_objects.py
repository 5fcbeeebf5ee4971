"""Components of a session: the script's objects by name, each with ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from slipway.base.errors import SessionError
from slipway.checkpoint.stateful import Stateful
from slipway.rng.generator_state import ADAPTERS, wrapped
from slipway.state.model_state import Model
from slipway.state.module_attributes import ATTRIBUTES, ModuleAttributes
from slipway.state.optimizer_state import OptimizerState
from slipway.state.schedulers import schedulers_in
from slipway.state.wrappers import plain_name

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def named_objects(kind: str, value: Any) -> dict[str, Any]:
    """Return the objects of a Session argument by name: one as ``kind``, several as ``kind.name``.

    Args:
        kind: name of the argument.
        value: an object, a dictionary of objects by name, a list or tuple of objects, or None. A value with
            ``state_dict`` and ``load_state_dict`` is one object, even if it is a dictionary or a list.

    Raises:
        SessionError: if a name is not usable as a file name.
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


def session_components(objects: Mapping[str, Mapping[str, Any]]) -> dict[str, Stateful]:
    """Return the components that save and restore a session's objects, by name.

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
    """Return the component that saves and restores ``value``.

    Args:
        name: name of the component.
        value: a model, an optimizer, a generator, or any object with ``state_dict`` and ``load_state_dict``.
        parameters: returns the parameters of all models by name, to recreate an optimizer's parameter groups.
        schedulers: learning-rate schedulers that the session also saves.

    Raises:
        SessionError: if ``value`` has no state that can be saved.
    """
    if isinstance(value, nn.Module):
        return Model(name, value)
    if isinstance(value, Optimizer):
        return OptimizerState(name, value, parameters, schedulers)
    if isinstance(value, tuple(ADAPTERS)):
        adapter: Stateful = wrapped(value)
        return adapter
    if _has_state(value):
        stateful: Stateful = value
        return stateful
    raise SessionError(
        "no-state-dict",
        f"{name} is a {type(value).__name__}, which lacks state_dict or load_state_dict: pass an object with both.",
    )


def _has_state(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")

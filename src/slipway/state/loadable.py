"""Check whether a module can load a state_dict, without loading it: by names, shapes and the module's load code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from slipway.state.wrappers import plain_name, unwrap

T = TypeVar("T")

EXTRA = "_extra_state"
"""Key under which torch saves the result of a module's ``get_extra_state``."""
MAX_NAMED = 3
"""Maximum number of tensors named in a message."""

Shapes = dict[str, "torch.Size | None"]
"""Shapes of a module's tensors, by name without wrappers. None accepts any shape: uninitialized parameters, buffers
that are None, and extra state."""


class Mismatch(NamedTuple):
    """A tensor that a module cannot load."""

    name: str
    own: list[int] | None
    """Shape in the module; None if the module lacks the tensor."""
    given: list[int] | None
    """Shape in the state_dict; None if the state_dict lacks the tensor."""


def shapes_of(root: nn.Module) -> Shapes:
    """Return the names and shapes that ``root`` can load in its current state."""
    found: Shapes = dict.fromkeys(empty_buffers(root))
    for name, value in root.state_dict().items():
        found[plain_name(root, name)] = None if name.endswith(EXTRA) else _shape(value)
    return found


def empty_buffers(root: nn.Module) -> dict[str, tuple[nn.Module, str]]:
    """Return the persistent buffers that are None: module and local name, by name in the state_dict."""
    return {
        plain_name(root, f"{path}.{name}" if path else name): (module, name)
        for path, module in root.named_modules()
        for name, buffer in module._buffers.items()  # noqa: SLF001
        if buffer is None and name not in module._non_persistent_buffers_set  # noqa: SLF001
    }


def differences(root: nn.Module, own: Shapes, state: Mapping[str, Any]) -> list[Mismatch]:
    """Return the tensors that a module cannot load.

    Args:
        root: the module, possibly changed since ``own`` was taken.
        own: the module's shapes, from ``shapes_of``.
        state: the state to load, by names without wrappers.
    """
    found = [
        Mismatch(name, list(shape), None) for name, shape in own.items() if shape is not None and name not in state
    ]
    found += [Mismatch(name, None, list(_shape(value) or ())) for name, value in state.items() if name not in own]
    found += [
        Mismatch(name, list(shape), list(given))
        for name, value in state.items()
        if (shape := own.get(name)) is not None and (given := _shape(value)) is not None and shape != given
        if [*shape, *given] != [1]  # torch treats a scalar and a vector of one element alike
    ]
    return [each for each in found if not _custom_load_accepts(root, own, state, each.name)]


def named(differing: Iterable[str]) -> str:
    """Return the first MAX_NAMED of ``differing`` and the number of others, as text."""
    first = list(differing)
    more = f", and {len(first) - MAX_NAMED} more" if len(first) > MAX_NAMED else ""
    return "; ".join(first[:MAX_NAMED]) + more


def _shape(value: Any) -> torch.Size | None:
    return value.shape if isinstance(value, Tensor) and not is_lazy(value) and not value.is_nested else None


def _custom_load_accepts(root: nn.Module, own: Shapes, state: Mapping[str, Any], name: str) -> bool:
    """Return whether custom load code of a module may accept the tensor ``name``, which torch's code would refuse."""
    if type(root).load_state_dict is not nn.Module.load_state_dict:
        return True
    path, _, last = name.rpartition(".")
    owner = unwrap(root)
    for part in filter(None, path.split(".")):
        child = owner._modules.get(part)  # noqa: SLF001
        if owner._load_state_dict_pre_hooks or child is None:  # noqa: SLF001
            return bool(owner._load_state_dict_pre_hooks)  # noqa: SLF001 -- a hook may rename anything
        owner = unwrap(child)
    if owner._load_state_dict_pre_hooks:  # noqa: SLF001
        return True
    if type(owner)._load_from_state_dict is nn.Module._load_from_state_dict:  # noqa: SLF001
        return False
    return _copy_loads(owner, _part(own, path), _part(state, path), last)


def _part(values: Mapping[str, T], path: str) -> dict[str, T]:
    """Return the ``values`` of the module at ``path``, excluding its submodules."""
    prefix = f"{path}." if path else ""
    names = {name: name.removeprefix(prefix) for name in values if name.startswith(prefix)}
    return {local: values[name] for name, local in names.items() if "." not in local}


def _copy_loads(owner: nn.Module, own: Shapes, state: Mapping[str, Any], name: str) -> bool:
    """Return whether a copy of ``owner``, with meta tensors of the shapes ``own``, loads the tensor ``name``.

    If the module's load code raises, for instance because it needs data, the result is True.
    """
    copy = object.__new__(type(owner))
    copy.__dict__.update(owner.__dict__)
    tensors = {**owner._parameters, **owner._buffers}  # noqa: SLF001
    dtypes = {key: torch.float32 if tensor is None else tensor.dtype for key, tensor in tensors.items()}
    found = dict.fromkeys(tensors) | {
        key: torch.empty(shape, dtype=dtypes.get(key, torch.float32), device="meta")
        for key, shape in own.items()
        if shape is not None
    }
    copy._parameters = {key: tensor for key, tensor in found.items() if key in owner._parameters}  # noqa: SLF001
    copy._buffers = {key: tensor for key, tensor in found.items() if key not in owner._parameters}  # noqa: SLF001
    given = {key: value.to("meta") if _shape(value) is not None else value for key, value in state.items()}
    missing: list[str] = []
    unknown: list[str] = []
    errors: list[str] = []
    metadata = {"version": owner._version}  # noqa: SLF001
    try:
        copy._load_from_state_dict(given, "", metadata, True, missing, unknown, errors)
    except Exception:  # noqa: BLE001 -- user code may raise anything
        return True
    return name not in {*missing, *unknown} and not any(name in error for error in errors)

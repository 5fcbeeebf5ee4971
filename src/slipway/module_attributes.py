"""What modules compute with and ``state_dict`` leaves out: frozen parameters, attributes, buffers that do not persist.

A script that unfreezes a layer in its third epoch does not run that line again when it is resumed in its fifth. So what
has changed since the session was made is saved and restored. Tensors are saved also if they are small, as a script may
have drawn them without a seed; large ones that have not changed are compared by checksums.
"""

from __future__ import annotations

import itertools
import logging
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from slipway.checkpoint.components import CONTAINERS as KINDS
from slipway.checkpoint.components import NUMPY_KINDS, PLAIN, split
from slipway.checkpoint.savable import obstacle
from slipway.errors import warn
from slipway.replicas import checksum
from slipway.wrappers import plain_name, wrapped_child

log = logging.getLogger(__name__)

ATTRIBUTES = "attributes"
"""Name of this component, which a checkpoint of an older version does not have."""
SMALL = 1 << 22
"""Bytes of tensors that are always saved, such as a mask or a table of frequencies."""
CONTAINERS = {*KINDS.values()}
OF_TORCH = vars(nn.Module()).keys() - {"training"}
"""Attributes that any module has, and that hold none of its state."""


class Place(NamedTuple):
    """Where a value is kept."""

    module: str
    """Name of the model, and of the module within, without wrappers."""
    name: str
    is_buffer: bool


class Large(NamedTuple):
    """A tensor as it was at first."""

    tensor: weakref.ref[Tensor]
    version: int | None
    sums: tuple[int, int]

    def is_same(self, tensor: Tensor) -> bool:
        """Return whether ``tensor`` has the same elements."""
        untouched = self.tensor() is tensor and self.version is not None and self.version == _version(tensor)
        return untouched or checksum(tensor) == self.sums


class ModuleAttributes:
    """Whatever else the modules of models hold."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """Save what changes in ``models``, with their wrappers, from now on."""
        self._models = models
        self._frozen = self._flags()
        self._at_first: dict[Place, Any] = {}
        self._large: dict[Place, list[Large]] = {}
        for place, value in self._values():
            self._at_first[place] = _content(value)
            tensors = _tensors(value)
            if _size(tensors) > SMALL:
                self._large[place] = [Large(weakref.ref(each), _version(each), checksum(each)) for each in tensors]

    def state_dict(self) -> dict[str, Any]:
        """Return what has changed, and small tensors; of large ones that have not changed, checksums."""
        values: dict[Place, Any] = {}
        checksums: dict[Place, list[list[int]]] = {}
        for place, value in self._values():
            tensors = _tensors(value)
            if self._is_changed(place, value, tensors):
                values[place] = value
            elif tensors:
                checksums[place] = [list(large.sums) for large in self._large[place]]
        devices = {place: tensors[0].device.type for place, value in values.items() if (tensors := _tensors(value))}
        flags = {name: flag for name, flag in self._flags().items() if self._frozen.get(name, flag) != flag}
        found = {
            "requires_grad": flags,
            "values": _nested(values),
            "devices": _nested({place: kind for place, kind in devices.items() if kind != "cpu"}),
            "checksums": _nested(checksums),
        }
        return {key: value for key, value in found.items() if value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take it over; warn of what cannot be."""
        parameters = self._parameters()
        for name, flag in state_dict.get("requires_grad", {}).items():
            if name in parameters:
                parameters[name].requires_grad_(flag)
        devices = dict(_places(state_dict.get("devices", {})))
        modules = self._modules()
        for place, value in _places(state_dict.get("values", {})):
            for module in modules.get(place.module, []):
                _put(module, place, value, devices.get(place, "cpu"))
        for place, sums in _places(state_dict.get("checksums", {})):
            before = self._large.get(place, [])
            if [list(large.sums) for large in before] != sums:
                warn(
                    log,
                    "not-restored",
                    "%s of %s is not what it was when the run began, and no state_dict contains it",
                    place.name,
                    place.module,
                )

    def _is_changed(self, place: Place, value: Any, tensors: list[Tensor]) -> bool:
        if place not in self._at_first or self._at_first[place] != _content(value):
            return True
        before = self._large.get(place)
        if before is None:  # it is small, or was
            return bool(tensors)
        return not all(large.is_same(tensor) for large, tensor in zip(before, tensors, strict=True))

    def _modules(self) -> dict[str, list[nn.Module]]:
        """Return the modules by their names without wrappers; wrappers stand before what they wrap."""
        found: dict[str, list[nn.Module]] = {}
        for name, model in self._models.items():
            for path, module in model.named_modules():
                if not isinstance(module, torch.jit.ScriptModule):
                    found.setdefault(f"{name}/{plain_name(model, path)}", []).append(module)
        return found

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {
            f"{name}/{plain_name(model, path)}": parameter
            for name, model in self._models.items()
            for path, parameter in model.named_parameters()
        }

    def _flags(self) -> dict[str, bool]:
        return {name: parameter.requires_grad for name, parameter in self._parameters().items()}

    def _values(self) -> Iterator[tuple[Place, Any]]:
        """Yield what can be saved: buffers that do not persist, and attributes that are plain data or tensors."""
        for name, modules in self._modules().items():
            for module in modules:
                if wrapped_child(module):
                    continue
                for key in module._non_persistent_buffers_set:  # noqa: SLF001
                    if (buffer := module._buffers.get(key)) is not None and _is_data(buffer):  # noqa: SLF001
                        yield Place(name, key, True), buffer
                for key, value in vars(module).items():
                    if key not in OF_TORCH and _is_data(value):
                        yield Place(name, key, False), value


def _put(module: nn.Module, place: Place, value: Any, device: str) -> None:
    """Give an attribute or a buffer of ``module`` its ``value``."""
    if wrapped_child(module):
        if place.name == "training":
            module.training = value
        return
    own = next((tensor.device for tensor in module.parameters()), torch.device(device))
    where = own if own.type == device else torch.device("cpu")
    kept = module._buffers if place.is_buffer else vars(module)  # noqa: SLF001
    if place.is_buffer:
        vars(module).pop(place.name, None)
        module._non_persistent_buffers_set.add(place.name)  # noqa: SLF001
    kept[place.name] = _restored(kept.get(place.name), value, where)


def _restored(current: Any, value: Any, device: torch.device) -> Any:
    """Return ``value``, in place of ``current`` if that is of the same kind, as other objects may refer to it."""
    if isinstance(value, Tensor):
        return _restored_tensor(current, value, device)
    alike = type(current) is type(value)
    if isinstance(value, dict):
        found = {key: _restored(current.get(key) if alike else None, each, device) for key, each in value.items()}
        kept = current if alike else type(value)()
        kept.clear()
        kept.update(found)
        return kept
    if isinstance(value, (list, tuple)):
        before = itertools.chain(current if alike else (), itertools.repeat(None))
        items = [_restored(was, each, device) for each, was in zip(value, before, strict=False)]
        if alike and isinstance(current, list):
            current[:] = items
        return current if alike and isinstance(current, list) else type(value)(items)
    return value


def _restored_tensor(current: Any, value: Tensor, device: torch.device) -> Tensor:
    if not isinstance(current, Tensor):
        return value.to(device, copy=True)
    fits = (current.shape, current.dtype) == (value.shape, value.dtype)
    if not fits or obstacle(current, restored_in_place=True):
        return value.to(current.device, copy=True)
    if not torch.equal(current.detach().cpu(), value):
        current.detach().copy_(value)
    return current


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what the containers in ``value`` hold."""
    if type(value) not in CONTAINERS:
        yield value
        return
    if isinstance(value, dict):
        yield from value
    for each in value.values() if isinstance(value, dict) else value:
        yield from _leaves(each)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in _leaves(value) if isinstance(leaf, Tensor)]


def _is_data(value: Any) -> bool:
    """Return whether ``value`` can be saved: not parameters, which are in a state_dict, nor results with a graph."""
    for leaf in _leaves(value):
        if isinstance(leaf, Tensor):
            if isinstance(leaf, nn.Parameter) or not leaf.is_leaf or obstacle(leaf):
                return False
        elif isinstance(leaf, (np.ndarray, np.generic)):
            if leaf.dtype.kind not in NUMPY_KINDS:
                return False
        elif type(leaf) not in {*PLAIN, bytes}:
            return False
    return True


def _content(value: Any) -> Any:
    """Return what ``value`` holds besides tensors, to be compared later."""
    if type(value) in PLAIN:
        return type(value), value
    return split({"": value}, "")[1]


def _size(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001


def _nested(values: Mapping[Place, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``values`` as a checkpoint holds them: by kind, module and name."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for place, value in values.items():
        kind = "buffers" if place.is_buffer else "attributes"
        found.setdefault(kind, {}).setdefault(place.module, {})[place.name] = value
    return found


def _places(nested: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[tuple[Place, Any]]:
    for kind, modules in nested.items():
        for module, values in modules.items():
            for name, value in values.items():
                yield Place(module, name, kind == "buffers"), value

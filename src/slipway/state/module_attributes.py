"""State of modules and optimizers that ``state_dict`` leaves out: frozen parameters, attributes, buffers.

If a script unfreezes a layer in its third epoch and is resumed in its fifth, that line does not run again. Values that
have changed since the session was created are therefore saved and restored. Small tensors are always saved, because a
script may have drawn them without a seed. Large unchanged tensors are compared by checksum.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from slipway.base.errors import warn
from slipway.checkpoint.fingerprint import fingerprint
from slipway.dist.compare_ranks import checksum
from slipway.state.attribute_values import (
    Restoring,
    content_of,
    generators_at,
    has_generators,
    is_data,
    saved_form,
    tensors_of,
)
from slipway.state.loadable import named
from slipway.state.module_objects import Look
from slipway.state.optimizer_attributes import (
    address_of,
    optimizers_with_attributes,
    parameters_in,
    saved_addresses,
    script_attributes,
    state_parts,
)
from slipway.state.wrappers import plain_name, wrapped_child

log = logging.getLogger(__name__)

ATTRIBUTES = "attributes"
"""Name of this component."""
SMALL = 1 << 22
"""Size in bytes up to which tensors are always saved, such as a mask or a frequency table."""
BASE_ATTRIBUTES = vars(nn.Module()).keys() - {"training"}
"""Attributes that every module has and that hold no state of it."""


class AttributePlace(NamedTuple):
    """Location of a value: owner and attribute name."""

    module: str
    """MODEL/MODULE, the names of the model and of the module within, without wrappers; or OPTIMIZER/."""
    name: str
    is_buffer: bool

    def __str__(self) -> str:
        return f"{self.name} of {self.module.removesuffix('/')}"


class Large(NamedTuple):
    """Identity, version and checksum of a large tensor at the start of the session."""

    tensor: weakref.ref[Tensor]
    version: int | None
    sums: tuple[int, int]

    def is_same(self, tensor: Tensor) -> bool:
        """Return whether ``tensor`` has the same elements."""
        untouched = self.tensor() is tensor and self.version is not None and self.version == _version(tensor)
        return untouched or checksum(tensor) == self.sums


class ModuleAttributes:
    """Attributes, non-persistent buffers and ``requires_grad`` flags of models, and attributes of optimizers."""

    def __init__(
        self, models: Mapping[str, nn.Module], given: Iterable[object] = (), optimizers: Mapping[str, object] = {}
    ) -> None:
        """Record the current values, to detect later changes.

        Args:
            models: the models by name, with their wrappers.
            given: other objects of the session, which are saved separately and skipped here.
            optimizers: the optimizers by name.
        """
        self._models, self._given = models, [*models.values(), *given]
        self._optimizers = optimizers_with_attributes(optimizers)
        self._frozen = self._flags()
        self._initial: dict[AttributePlace, Any] = {}
        self._large: dict[AttributePlace, list[Large]] = {}
        self._objects: dict[AttributePlace, int | None] = {}
        """Digests of values that cannot be saved; None if changes are not reported, or one already was."""
        look = Look(self._known)
        for place, value in self._values():
            if not is_data(value):
                self._objects[place] = look.digest(value)
                continue
            self._initial[place] = content_of(value)
            tensors = tensors_of(value)
            if _size(tensors) > SMALL:
                self._large[place] = [Large(weakref.ref(each), _version(each), checksum(each)) for each in tensors]

    def state_dict(self) -> dict[str, Any]:
        """Return changed values, generators and small tensors, and checksums of large unchanged tensors.

        Warns of changed values that cannot be saved.
        """
        values: dict[AttributePlace, Any] = {}
        checksums: dict[AttributePlace, list[list[int]]] = {}
        changed: list[AttributePlace] = []
        look = Look(self._known)
        for place, value in self._values():
            if not is_data(value):
                changed += [place] if self._is_changed_object(place, look.digest(value)) else []
                continue
            tensors = tensors_of(value)
            if self._is_changed(place, value, tensors):
                values[place] = saved_form(value)
            elif tensors:
                checksums[place] = [list(large.sums) for large in self._large[place]]
        self._warn_of(changed)
        devices = {place: tensors[0].device.type for place, value in values.items() if (tensors := tensors_of(value))}
        flags = {name: flag for name, flag in self._flags().items() if self._frozen.get(name, flag) != flag}
        found = {
            "requires_grad": flags,
            "values": _nested(values),
            "devices": _nested({place: kind for place, kind in devices.items() if kind != "cpu"}),
            "checksums": _nested(checksums),
        }
        return {key: value for key, value in found.items() if value}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the saved values; warn of large tensors that differ from their checksums."""
        parameters = self._parameters()
        for name, flag in state_dict.get("requires_grad", {}).items():
            if name in parameters:
                parameters[name].requires_grad_(flag)
        devices = dict(_places(state_dict.get("devices", {})))
        owners = self._modules() | {f"{name}/": [each] for name, each in self._optimizers.items()}
        for place, value in _places(state_dict.get("values", {})):
            for owner in owners.get(place.module, []):
                _put(owner, place, value, devices.get(place, "cpu"))
        for place, sums in _places(state_dict.get("checksums", {})):
            before = self._large.get(place, [])
            if [list(large.sums) for large in before] != sums:
                warn(
                    log,
                    "not-restored",
                    "%s differs from its value at the start of the run, and no state_dict contains it",
                    place,
                )

    def generators(self) -> dict[tuple[Any, ...], Any]:
        """Return the generators that modules and optimizers hold, by place."""
        return dict(generators_at((place, value) for place, value in self._values() if is_data(value)))

    def _is_changed(self, place: AttributePlace, value: Any, tensors: list[Tensor]) -> bool:
        if place not in self._initial or self._initial[place] != content_of(value):
            return True
        before = self._large.get(place)
        if before is None:  # the value is small, or was at first
            return bool(tensors) or has_generators(value)
        return not all(large.is_same(tensor) for large, tensor in zip(before, tensors, strict=True))

    def _is_changed_object(self, place: AttributePlace, digest: int | None) -> bool:
        return digest is not None and self._objects.get(place, 0) not in {None, digest}

    def _warn_of(self, changed: list[AttributePlace]) -> None:
        if changed:
            self._objects |= dict.fromkeys(changed)
            warn(
                log,
                "not-restored",
                "changed since the session began, and cannot be saved because it is not plain data: %s",
                named(map(str, changed)),
            )

    def _known(self) -> set[int]:
        """Return the ``id`` of each object that is saved elsewhere."""
        modules = [each for value in self._given if isinstance(value, nn.Module) for each in value.modules()]
        tensors = [
            *(each for module in modules for each in module._parameters.values()),  # noqa: SLF001
            *(each for module in modules for each in module._buffers.values()),  # noqa: SLF001
        ]
        of_optimizers = [each for optimizer in self._optimizers.values() for each in state_parts(optimizer)]
        return {*map(id, (*self._given, *modules, *tensors, *of_optimizers))} - {id(None)}

    def _modules(self) -> dict[str, list[nn.Module]]:
        """Return the modules by names without wrappers; under each name, a wrapper precedes its wrapped module."""
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

    def _values(self) -> Iterator[tuple[AttributePlace, Any]]:
        """Yield non-persistent buffers, and attributes of modules and optimizers."""
        for name, modules in self._modules().items():
            for module in modules:
                if wrapped_child(module):
                    continue
                for key, buffer in module._buffers.items():  # noqa: SLF001 -- in the same order on all ranks
                    if buffer is not None and key in module._non_persistent_buffers_set:  # noqa: SLF001
                        yield AttributePlace(name, key, True), buffer
                for key, value in vars(module).items():
                    if key not in BASE_ATTRIBUTES:
                        yield AttributePlace(name, key, False), value
        for name, optimizer in self._optimizers.items():
            yield from ((AttributePlace(f"{name}/", key, False), value) for key, value in _of_optimizer(optimizer))


def _of_optimizer(optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of ``optimizer`` that are not saved elsewhere."""
    saved = functools.cache(functools.partial(saved_addresses, optimizer))
    for name, value in script_attributes(optimizer):
        tensors = tensors_of(value)
        if not tensors or saved().isdisjoint(map(address_of, tensors)):
            yield name, value


def _put(owner: nn.Module | Optimizer, place: AttributePlace, value: Any, device: str) -> None:
    """Set an attribute or a buffer of ``owner`` to the saved ``value``."""
    if isinstance(owner, nn.Module) and wrapped_child(owner):
        if place.name == "training":
            owner.training = value
        return
    parameters = owner.parameters() if isinstance(owner, nn.Module) else parameters_in(owner)
    own = next((tensor.device for tensor in parameters), torch.device(device))
    where = own if own.type == device else torch.device("cpu")
    kept = vars(owner)
    if place.is_buffer and isinstance(owner, nn.Module):
        vars(owner).pop(place.name, None)
        owner._non_persistent_buffers_set.add(place.name)  # noqa: SLF001
        kept = owner._buffers  # noqa: SLF001
    kept[place.name] = Restoring(where).restored(kept.get(place.name), value)


def attributes_equal_to(number: int, state_dict: Mapping[str, Any]) -> str:
    """Return the names of attributes equal to ``number`` in a state of ``ModuleAttributes``; "" if none is."""
    places = _places(state_dict.get("values", {}))
    return named(str(place) for place, value in places if type(value) is int and value == number)


def generator_digests(state_dict: Mapping[str, Any]) -> dict[tuple[Any, ...], str]:
    """Return digests of the generator states in a state of ``ModuleAttributes``, by place."""
    found = generators_at(_places(state_dict.get("values", {})))
    return {place: fingerprint(saved.state).digest for place, saved in found}


def _size(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _version(tensor: Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version  # noqa: SLF001


def _nested(values: Mapping[AttributePlace, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return ``values`` in the layout of a checkpoint: by kind, module and name."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for place, value in values.items():
        kind = "buffers" if place.is_buffer else "attributes"
        found.setdefault(kind, {}).setdefault(place.module, {})[place.name] = value
    return found


def _places(nested: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[tuple[AttributePlace, Any]]:
    for kind, modules in nested.items():
        for module, values in modules.items():
            for name, value in values.items():
                yield AttributePlace(module, name, kind == "buffers"), value

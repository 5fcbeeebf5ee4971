"""Values that a checkpoint can hold: dense tensors of dtypes that safetensors stores, and containers of them."""

from __future__ import annotations

import functools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from slipway.checkpoint.shards import is_sharded, local_part

CLASSES = (Tensor, nn.Parameter)
"""Tensor classes without further state. Another class may hold more, and would be restored as a plain tensor."""


def obstacle(tensor: Tensor, *, restored_in_place: bool = False) -> str:
    """Return why ``tensor`` cannot be saved, such as "has the layout torch.sparse_coo"; "" if it can.

    Args:
        tensor: a tensor on any device.
        restored_in_place: whether loading copies its elements into a tensor of the same class, as modules do. Then a
            subclass that keeps its data in the usual storage can be saved, but an expanded tensor cannot.
    """
    if not is_sharded(tensor):
        return _obstacle(tensor, restored_in_place=restored_in_place)
    if any(placement.is_partial() for placement in tensor.placements):  # type: ignore[attr-defined] # a DTensor
        return "is a DTensor whose ranks hold parts of sums (Partial)"
    return _obstacle(local_part(tensor), restored_in_place=restored_in_place)


def _obstacle(tensor: Tensor, *, restored_in_place: bool) -> str:
    kind = type(tensor)
    has_own_storage = kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    if kind not in CLASSES and (has_own_storage or not restored_in_place):
        return f"is of the tensor subclass {kind.__name__}"
    if tensor.is_nested or tensor.layout != torch.strided:
        return "is a nested tensor" if tensor.is_nested else f"has the layout {tensor.layout}"
    if tensor.is_meta:
        return "is on the meta device, without data"
    if not _is_stored(tensor.dtype):
        return f"is of {tensor.dtype}"
    steps = zip(tensor.stride(), tensor.shape, strict=True)
    if restored_in_place and any(not step and size > 1 for step, size in steps):
        return "is expanded, so its elements cannot be written"
    return ""


@functools.cache
def _is_stored(dtype: torch.dtype) -> bool:
    """Return whether the installed safetensors stores ``dtype``."""
    try:
        save({"tensor": torch.empty(2, dtype=dtype)})
    except Exception:  # noqa: BLE001 -- KeyError, or torch's errors for quantized dtypes
        return False
    return True


CONTAINERS: dict[str, Any] = {
    kind.__name__: kind for kind in (dict, OrderedDict, Counter, defaultdict, list, tuple, set, frozenset, deque)
}
"""Container classes by their names in a tree. No subclasses except named tuples: their class would be lost."""
NAMED_TUPLE = "namedtuple"
FACTORIES: dict[str | None, Any] = {
    None: None,
    **{kind.__name__: kind for kind in (bool, int, float, str, list, tuple, dict, set)},
}
"""Allowed default factories of a ``defaultdict``, by name."""
SETS = (set, frozenset)
DICTIONARIES = {name for name, kind in CONTAINERS.items() if issubclass(kind, dict)}
WITH_OPTIONS = {NAMED_TUPLE, "deque", "defaultdict"}
"""Kinds for which ``make`` takes options."""


def kind_of(value: object) -> str | None:
    """Return the kind of a container; None if ``value`` is not a container that can be saved."""
    kind = type(value)
    if CONTAINERS.get(kind.__name__) is kind:
        return None if isinstance(value, defaultdict) and _factory(value) not in FACTORIES else kind.__name__
    return NAMED_TUPLE if kind.__bases__ == (tuple,) and _class_of(kind.__module__, kind.__qualname__) is kind else None


def options_of(value: object) -> list[Any]:
    """Return the options that ``make`` takes in addition to the items."""
    if isinstance(value, defaultdict):
        return [_factory(value)]
    if isinstance(value, deque):
        return [value.maxlen]
    return [type(value).__module__, type(value).__qualname__] if kind_of(value) == NAMED_TUPLE else []


def make(kind: str, items: Iterable[Any], *options: Any) -> Any:
    """Return a container of the given kind.

    Args:
        kind: as ``kind_of`` returns it.
        items: the items; (key, value) pairs for dictionaries.
        options: as ``options_of`` returns them.

    Raises:
        ValueError: if this version does not support the kind, or the script has no such named tuple.
    """
    if kind == NAMED_TUPLE:
        found, values = _class_of(*options), [*items]
        if found is None or len(found._fields) != len(values):
            raise ValueError(f"a state holds a named tuple {options[1]}, which {options[0]} does not have")
        return found._make(values)
    if kind not in CONTAINERS:
        raise ValueError(f"a state holds a {kind}, which this version does not support")
    if kind == "deque":
        return deque(items, *options)
    if kind == "defaultdict":
        return defaultdict(FACTORIES[options[0]], items)
    return CONTAINERS[kind](dict(items) if issubclass(CONTAINERS[kind], dict) else items)


def _factory(value: defaultdict[Any, Any]) -> str | None:
    factory: Any = value.default_factory
    name = getattr(factory, "__name__", "")
    return None if factory is None else name if FACTORIES.get(name) is factory else ""


def _class_of(module: str, name: str) -> Any:
    """Return the named tuple ``name`` of a module that the script has imported; None if there is none."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    is_class = isinstance(found, type) and found.__bases__ == (tuple,) and hasattr(found, "_fields")
    return found if is_class else None

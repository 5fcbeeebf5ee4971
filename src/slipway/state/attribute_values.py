"""Values of attributes: which of them can be saved as data, their saved form, and their restoration in place."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slipway.checkpoint.stateful import NUMPY_KINDS, PLAIN, split
from slipway.checkpoint.values import SETS, kind_of, make, obstacle, options_of
from slipway.rng.generator_state import SavedGenerator
from slipway.rng.loader_generators import is_local_generator


class Restoring:
    """Restores one value, in place if possible, because other objects may refer to the existing one."""

    def __init__(self, device: torch.device) -> None:
        """Create missing tensors on ``device``."""
        self._device = device
        self._written: set[int] = set()
        """Ids of restored tensors: one tensor may be in several places whose saved values differ."""

    def restored(self, current: Any, value: Any) -> Any:
        """Return the restored ``value``, written into ``current`` if that has the same kind."""
        if isinstance(value, Tensor):
            return self._tensor(current, value)
        if isinstance(value, SavedGenerator):
            return value.restored(current, self._device)
        kind = kind_of(value)
        if kind is None:
            return value
        alike = type(current) is type(value)
        if isinstance(value, dict):
            before = current if alike else {}
            items: Any = [(key, self.restored(before.get(key), each)) for key, each in value.items()]
        elif isinstance(value, SETS):
            items = value
        else:
            known = itertools.chain(current if alike else (), itertools.repeat(None))
            items = [self.restored(was, each) for each, was in zip(value, known, strict=False)]
        has_other_length = alike and isinstance(value, deque) and current.maxlen != value.maxlen
        if not alike or has_other_length or isinstance(value, (tuple, frozenset)):
            return make(kind, items, *options_of(value))
        current.clear()
        if isinstance(value, (list, deque)):
            current.extend(items)
        else:
            current.update(dict(items) if isinstance(value, dict) else items)
        return current

    def _tensor(self, current: Any, value: Tensor) -> Tensor:
        if not isinstance(current, Tensor):
            return value.to(self._device, copy=True)
        if (current.shape, current.dtype) != (value.shape, value.dtype) or obstacle(current, restored_in_place=True):
            return value.to(current.device, copy=True)
        if not torch.equal(current.detach().cpu(), value):
            if id(current) in self._written:
                return value.to(current.device, copy=True)
            current.detach().copy_(value)
        self._written.add(id(current))
        return current


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values within nested containers, or ``value`` itself if it is not a container."""
    if type(value) in PLAIN or kind_of(value) is None:
        yield value
        return
    for each in value.values() if isinstance(value, dict) else value:
        yield from _leaves(each)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in ``value``, which may be a tensor or a container."""
    return [] if type(value) in PLAIN else [leaf for leaf in _leaves(value) if isinstance(leaf, Tensor)]


def is_data(value: Any) -> bool:
    """Return whether ``value`` can be saved as data.

    Parameters cannot, because a state_dict contains them; neither can tensors with an autograd graph.
    """
    if type(value) in PLAIN:
        return True
    if kind_of(value) is None:
        return _is_savable_leaf(value)
    if isinstance(value, dict):
        return all(type(key) in PLAIN for key in value) and all(map(is_data, value.values()))
    if isinstance(value, SETS):
        return all(type(leaf) in {*PLAIN, bytes} for leaf in _leaves(value))
    return all(map(is_data, value))


def _is_savable_leaf(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not isinstance(value, nn.Parameter) and value.is_leaf and not obstacle(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.kind in NUMPY_KINDS
    return type(value) is bytes or is_local_generator(value)


def saved_form(value: Any) -> Any:
    """Return ``value`` with each generator replaced by its state."""
    if not has_generators(value):
        return value
    kind = kind_of(value)
    if kind is None:
        return SavedGenerator.of(value)
    pairs = isinstance(value, dict)
    items = [(key, saved_form(each)) for key, each in value.items()] if pairs else [saved_form(each) for each in value]
    return make(kind, items, *options_of(value))


def has_generators(value: Any) -> bool:
    """Return whether ``value`` is or contains a generator that a session saves."""
    return any(type(leaf) not in PLAIN and is_local_generator(leaf) for leaf in _leaves(value))


def generators_at(values: Iterable[tuple[tuple[Any, ...], Any]]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the generators in ``values``, or their saved states, with their places."""
    for place, value in values:
        if isinstance(value, SavedGenerator) or is_local_generator(value):
            yield place, value
        elif kind_of(value) is not None and not isinstance(value, SETS):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            yield from generators_at(((*place, key), each) for key, each in items)


def content_of(value: Any) -> Any:
    """Return the contents of ``value`` except its tensors, for a later comparison."""
    if type(value) in PLAIN:
        return type(value), value
    return split({"": saved_form(value)}, "")[1]

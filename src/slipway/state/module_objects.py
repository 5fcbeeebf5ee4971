"""Objects that modules hold and a checkpoint cannot: whether they have changed, by digests that take little time."""

from __future__ import annotations

import argparse
import datetime as dt
import decimal
import enum
import functools
import itertools
import types
import weakref
from collections import deque
from collections.abc import Callable, Container
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from slipway.checkpoint.components import PLAIN
from slipway.checkpoint.containers import SETS
from slipway.dist.collectives import as_bytes
from slipway.rng.loader_generators import LIBRARIES, attributes_of, is_own_generator
from slipway.rng.seeding import state_digest

MAX_PARTS = 1000
"""Values within one object that are looked at; a larger one has no digest."""
MAX_PARTS_OF_ALL = 4000
"""Values that one look takes in: some milliseconds."""
MAX_ITEMS = 64
"""Items of a container that are looked at: the first and the last."""
MAX_BYTES = 1 << 16
"""Of a tensor or array that are compared; of a larger one, elements at equal distances."""
BY_TEXT = (
    *(complex, range, slice, PurePath, enum.Enum, dt.date, dt.time, dt.timedelta, decimal.Decimal),
    *(str, bytes, bytearray, int, float),  # subclasses, as of an enum
    *(torch.dtype, torch.device, np.dtype, np.generic, itertools.count),
)
"""Kinds whose values are what ``repr`` says."""
OPAQUE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, weakref.ref)
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
"""Of the standard library, with attributes of a script; its other objects are locks, threads, files and loggers."""
SEQUENCES = (list, tuple, deque)
CONTAINERS = (dict, *SEQUENCES, *SETS)


class Look:
    """One look at the objects of all modules, which may share them."""

    def __init__(self, known: Callable[[], Container[int]]) -> None:
        """Pass over objects whose ``id`` is in what ``known`` returns: they are saved otherwise."""
        self._get_known = known
        self._left = MAX_PARTS_OF_ALL
        self._digests: dict[int, int | None] = {}

    def digest(self, value: object) -> int | None:
        """Return what stays equal, in this process, while ``value`` holds the same data; None if it shows none."""
        if id(value) not in self._digests:
            try:
                self._digests[id(value)] = self._digest(value)
            except Exception:  # noqa: BLE001 -- of the code of a script's class
                self._digests[id(value)] = None
        return self._digests[id(value)]

    @functools.cached_property
    def _known(self) -> Container[int]:
        return self._get_known()

    def _digest(self, value: object) -> int | None:
        texts: list[str] = []
        waiting, seen = [value], dict[int, object]()
        has_data, most = False, min(MAX_PARTS, self._left)
        while waiting:
            each = waiting.pop()
            self._left -= 1
            if len(texts) >= most:
                return None
            text = repr(each) if type(each) in PLAIN else self._text(each)
            if text is None and self._is_object(each) and id(each) not in seen:
                seen[id(each)] = each
                text, parts = _parts(each)
                waiting += parts
                has_data |= isinstance(each, CONTAINERS) and not parts
            elif text is not None:
                has_data = True
            texts.append(f"{type(each).__qualname__} {text}")
        return hash(tuple(texts)) if has_data else None

    def _text(self, value: object) -> str | None:
        """Return what stands for ``value``; None if it has only parts, or no data."""
        if isinstance(value, BY_TEXT):
            return repr(value)
        return text_of_numbers(value) if self._may_hold_data(value) else None

    def _is_object(self, value: object) -> bool:
        """Return whether ``value`` may hold data in its parts: not a tool, as an optimizer or a lock is."""
        if not self._may_hold_data(value) or hasattr(value, "param_groups"):
            return False
        is_known = isinstance(value, (nn.Module, *NAMESPACES, *CONTAINERS))
        return is_known or type(value).__module__.partition(".")[0] not in LIBRARIES

    def _may_hold_data(self, value: object) -> bool:
        return not isinstance(value, OPAQUE) and id(value) not in self._known


def text_of_numbers(value: object) -> str | None:
    """Return what stands for a tensor, an array or a generator."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            return None
        sample = value.detach().reshape(-1)[:: _step(value.nbytes)]
        return f"{list(value.shape)} {hash(as_bytes(sample.cpu()).numpy().tobytes())}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {hash(value.reshape(-1)[:: _step(value.nbytes)].tobytes())}"
    return str(state_digest(value)) if is_own_generator(value) else None


def _step(size: int) -> int:
    """Return the distance of the elements that are compared of ``size`` bytes."""
    return 1 + size // MAX_BYTES


def _parts(value: Any) -> tuple[str, list[Any]]:
    """Return the names of what ``value`` refers to, and that."""
    if isinstance(value, nn.Module):  # one that is not registered, as a teacher in a list
        return "", [*value.parameters(), *value.buffers()]
    names: list[object] = []
    parts: list[Any] = []
    if isinstance(value, SETS):
        names.append(hash(frozenset(value)))
    elif isinstance(value, SEQUENCES):
        names.append(len(value))
        parts += _ends(value)
    elif isinstance(value, dict):
        names.append(len(value))
        keys = _ends(value)
        names += map(hash, keys)  # of an object, such as a parameter, by its identity
        parts += [value[key] for key in keys]
    attributes = attributes_of(value)
    ordered = sorted(attributes)
    return repr([*names, *ordered]), [*parts, *(attributes[name] for name in ordered)]


def _ends(values: Any) -> list[Any]:
    """Return the first items of a container, and the last ones."""
    if len(values) <= 2 * MAX_ITEMS:
        return [*values]
    return [*itertools.islice(values, MAX_ITEMS), *itertools.islice(reversed(values), MAX_ITEMS)]

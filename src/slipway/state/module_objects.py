"""Change detection for objects of modules that a checkpoint cannot hold, by fast digests."""

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

from slipway.checkpoint.stateful import PLAIN
from slipway.checkpoint.values import SETS
from slipway.dist.collectives import as_bytes
from slipway.rng.loader_generators import LIBRARIES, attributes_of, is_local_generator
from slipway.rng.seeding import state_digest

MAX_PARTS = 1000
"""Maximum number of values in one object; a larger object has no digest."""
MAX_PARTS_TOTAL = 4000
"""Maximum number of values in all objects that one ``Look`` digests: some milliseconds."""
MAX_ITEMS = 64
"""Number of items compared at each end of a container."""
MAX_BYTES = 1 << 16
"""Bytes of a tensor or array that are compared; a larger one is sampled at equal distances."""
REPR_TYPES = (
    *(complex, range, slice, PurePath, enum.Enum, dt.date, dt.time, dt.timedelta, decimal.Decimal),
    *(str, bytes, bytearray, int, float),  # subclasses, as of an enum
    *(torch.dtype, torch.device, np.dtype, np.generic, itertools.count),
)
"""Types whose ``repr`` represents their value."""
OPAQUE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial, weakref.ref)
NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
"""Standard-library types that hold a script's attributes. Others, such as locks, threads, files and loggers, do not."""
SEQUENCES = (list, tuple, deque)
CONTAINERS = (dict, *SEQUENCES, *SETS)


class Look:
    """Digests of the objects of all modules at one time; modules may share objects."""

    def __init__(self, known: Callable[[], Container[int]]) -> None:
        """Skip objects whose ``id`` is in the result of ``known``, because they are saved elsewhere."""
        self._get_known = known
        self._left = MAX_PARTS_TOTAL
        self._digests: dict[int, int | None] = {}

    def digest(self, value: object) -> int | None:
        """Return a hash of the data in ``value``, valid in this process only; None if no data is accessible."""
        if id(value) not in self._digests:
            try:
                self._digests[id(value)] = self._digest(value)
            except Exception:  # noqa: BLE001 -- raised by code of the script
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
        """Return text that represents ``value``; None if the data is only in its parts, or it has none."""
        if isinstance(value, REPR_TYPES):
            return repr(value)
        return text_of_numbers(value) if self._may_hold_data(value) else None

    def _is_object(self, value: object) -> bool:
        """Return whether ``value`` may hold data in its parts; an optimizer or a lock does not."""
        if not self._may_hold_data(value) or hasattr(value, "param_groups"):
            return False
        is_known = isinstance(value, (nn.Module, *NAMESPACES, *CONTAINERS))
        return is_known or type(value).__module__.partition(".")[0] not in LIBRARIES

    def _may_hold_data(self, value: object) -> bool:
        return not isinstance(value, OPAQUE) and id(value) not in self._known


def text_of_numbers(value: object) -> str | None:
    """Return text that represents the contents of a tensor, array or generator; None for other values."""
    if isinstance(value, Tensor):
        if value.grad_fn is not None:
            return None
        sample = value.detach().reshape(-1)[:: _step(value.nbytes)]
        return f"{list(value.shape)} {hash(as_bytes(sample.cpu()).numpy().tobytes())}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {hash(value.reshape(-1)[:: _step(value.nbytes)].tobytes())}"
    return str(state_digest(value)) if is_local_generator(value) else None


def _step(size: int) -> int:
    """Return the stride of the elements to compare, for a tensor of ``size`` bytes."""
    return 1 + size // MAX_BYTES


def _parts(value: Any) -> tuple[str, list[Any]]:
    """Return the names of the parts of ``value`` as text, and the parts."""
    if isinstance(value, nn.Module):  # not registered as a submodule, such as a teacher in a list
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
        names += map(hash, keys)  # an object, such as a parameter, is hashed by identity
        parts += [value[key] for key in keys]
    attributes = attributes_of(value)
    ordered = sorted(attributes)
    return repr([*names, *ordered]), [*parts, *(attributes[name] for name in ordered)]


def _ends(values: Any) -> list[Any]:
    """Return the first and the last MAX_ITEMS items of a container, or all if it has no more."""
    if len(values) <= 2 * MAX_ITEMS:
        return [*values]
    return [*itertools.islice(values, MAX_ITEMS), *itertools.islice(reversed(values), MAX_ITEMS)]

"""Find and seed the random number generators in a loader's data set, transforms, collate_fn and samplers."""

from __future__ import annotations

import functools
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor

from slipway.base.environment import World
from slipway.rng.seeding import derive, reseed, seed_generators, state_digest

MAX_OBJECTS = 2000
"""Maximum number of objects that a search visits, nearest first."""
MAX_ITEMS = 64
"""Maximum number of items that a search visits in a list or dictionary: it need not visit all samples."""
LIBRARIES = frozenset({*sys.stdlib_module_names, "numpy", "torch", "slipway"}) - {"__main__"}
"""Packages whose classes and functions contain only the global generators."""


class LoaderGenerators:
    """Generators in the parts of a loader, which a session seeds by the position in training.

    If their initial states differ between ranks, they remain different, because this is intended.
    """

    def __init__(self, *parts: Any, without: Iterable[Any] = ()) -> None:
        """Search ``parts`` for generators, except those in ``without``."""
        left_out = {*map(id, without)}
        self.found = [generator for generator in find_generators(*parts) if id(generator) not in left_out]
        self._begun = [state_digest(generator) for generator in self.found]

    def seed(self, seed: int, world: World) -> None:
        """Seed each generator from ``seed`` and its number, and on several ranks also from its initial state."""
        for number, (generator, begun) in enumerate(zip(self.found, self._begun, strict=True)):
            reseed(generator, derive(seed, number, *([begun] if world.size > 1 else [])))


def reseed_all(generators: Iterable[Any], seed: int) -> None:
    """Seed each of ``generators`` from ``seed`` and its number."""
    for number, generator in enumerate(generators):
        reseed(generator, derive(seed, number))


_worker_generators: list[Any] = []
"""Generators in this worker process."""


def register_worker_generators(*parts: Any) -> None:
    """Register the generators in ``parts`` of a loader, so that ``seed_worker`` seeds them in this worker process."""
    _worker_generators[:] = find_generators(*parts)


def seed_worker(seed: int) -> None:
    """Seed this worker process's generators: the global ones, and those of the data set and ``collate_fn``."""
    seed_generators(seed)
    reseed_all(_worker_generators, seed)


def find_generators(*parts: Any) -> list[Any]:
    """Return the generators that are reachable from ``parts``, nearest first, without the global ones.

    The search follows attributes, containers, closures, the global names that functions use, and iterators such as
    ``zip``. It therefore finds a generator at module level that a data set uses, as well as a data set's ``self.rng``.
    """
    return [found for found in reachable(parts) if is_local_generator(found)]


def is_generator(value: Any) -> bool:
    """Return whether ``value`` is a random number generator that can be seeded."""
    return isinstance(value, _kinds()) and not isinstance(value, random.SystemRandom)


def is_local_generator(value: Any) -> bool:
    """Return whether ``value`` is a generator and not a global one; a session seeds and saves the global ones."""
    return is_generator(value) and id(value) not in _global_generators()


def _kinds() -> tuple[type, ...]:
    if numpy := sys.modules.get("numpy"):
        return random.Random, torch.Generator, numpy.random.Generator, numpy.random.RandomState
    return random.Random, torch.Generator


def _global_generators() -> set[int]:
    found = {id(random._inst), id(torch.default_generator)}  # noqa: SLF001 -- Python's global one
    if numpy := sys.modules.get("numpy"):
        found.add(id(numpy.random.mtrand._rand))  # noqa: SLF001 -- numpy's global one
    return found


def reachable(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield the objects that are reachable from ``parts``, breadth first, at most MAX_OBJECTS."""
    waiting, seen = deque(parts), dict[int, Any]()
    while waiting and len(seen) < MAX_OBJECTS:
        value = waiting.popleft()
        if id(value) in seen or isinstance(value, (str, bytes, int, float, Tensor, ModuleType, type(None))):
            continue
        seen[id(value)] = value  # keeps the object alive, so that no other object gets its id
        yield value
        waiting.extend(() if is_generator(value) or _of_library(value) else _parts(value))


def _parts(value: Any) -> Iterable[Any]:
    """Return the objects that ``value`` refers to."""
    for kinds, parts in PARTS.items():
        if isinstance(value, kinds):
            return parts(value)
    return *attributes_of(value).values(), *type(value).__mro__


def _first(values: Iterable[Any]) -> list[Any]:
    return [value for value, _ in zip(values, range(MAX_ITEMS), strict=False)]


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the instance attributes of ``value`` by name, including slots, without class attributes."""
    slots = [
        name for cls in type(value).__mro__ for name in vars(cls).get("__slots__", ()) if not name.startswith("__")
    ]
    return {**{name: getattr(value, name, None) for name in slots}, **getattr(value, "__dict__", {})}


def _used_by(function: FunctionType) -> list[Any]:
    """Return the objects that a function refers to: its defaults, its closure, and the globals that its code names."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if cell != CellType()]
    known = function.__globals__
    named = [known[name] for name in _names(function.__code__) if name in known]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), *named]


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in ``code`` and in its nested functions."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _of_library(value: Any) -> bool:
    """Return whether ``value`` is a class or function from one of LIBRARIES."""
    return isinstance(value, (type, FunctionType)) and (str(value.__module__).partition(".")[0] in LIBRARIES)


PARTS: dict[type | tuple[type, ...], Callable[[Any], Iterable[Any]]] = {
    dict: lambda value: _first(dict.values(value)),  # the method of transformers' lazy mappings imports all models
    (list, tuple, set, frozenset, deque): _first,
    FunctionType: _used_by,
    MethodType: lambda value: (value.__self__, value.__func__),
    BuiltinFunctionType: lambda value: (value.__self__,),
    functools.partial: lambda value: (value.func, value.args, value.keywords),
    (staticmethod, classmethod): lambda value: (value.__func__,),
    property: lambda value: (value.fget,),
    (zip, map, filter, enumerate): lambda value: value.__reduce__()[1:],
    GeneratorType: lambda value: value.gi_frame.f_locals.values() if value.gi_frame else (),
    type: lambda value: vars(value).values(),
}
"""Functions that return the references of an object, by its kind. For other kinds: attributes and classes."""

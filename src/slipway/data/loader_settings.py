"""Detection of changes that a script makes to its loaders during training and that a resumed attempt may lack.

Such changes are of settings, counters and data.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader

from slipway.base.errors import warn
from slipway.data.array_digest import data_digest_of
from slipway.rng.loader_generators import attributes_of, is_generator

log = logging.getLogger(__name__)

LOADER_ATTRIBUTES = ("batch_size", "drop_last", "collate_fn", "worker_init_fn", "dataset", "sampler", "batch_sampler")
MAX_PASSES = 8
"""Number of passes per epoch whose loaders are described: the first ones."""
MAX_SETTINGS = 200
MAX_ITEMS = 16
"""Maximum number of items described of a container."""
MAX_TEXT = 60
MAX_NAMES = 8
"""Maximum number of other settings named in a warning."""


class Part(NamedTuple):
    """A setting of a loader, or data that the loader holds."""

    text: str
    """A setting's value, or the digest of data."""
    objects: tuple[Callable[[], object], ...] = ()
    """References to the data and to the object that has them as an attribute; empty for a setting."""

    def may_differ(self, now: Part) -> bool:
        """Return whether the script has changed this into ``now``; data loaded late, in place of None, do not count."""
        is_late = bool(self.objects) != bool(now.objects) and "None" in {self.text, now.text}
        return self.text != now.text and not is_late

    def is_of_same_object(self, now: Part) -> bool:
        """Return whether ``now`` is of the same objects: otherwise it is of a loader that alternates with another."""
        pairs = zip(self.objects, now.objects, strict=False)
        return not now.objects or any(was() is not None and was() is found() for was, found in pairs)


class LoaderSettings:
    """The loaders of each pass of an epoch, compared with their state in the first epoch and at the save."""

    def __init__(self) -> None:
        """Start without descriptions."""
        self._first: dict[int, dict[str, Part]] = {}
        self._begun: dict[int, dict[str, Part]] = {}
        self._loaders: dict[int, object] = {}
        self._first_loaders: dict[int, Callable[[], object]] = {}
        self._saved: dict[str, dict[str, list[str]]] = {}

    def resume(self, changed: dict[str, dict[str, list[str]]]) -> None:
        """Compare later passes with ``changed``, which the method of this name returned at the save."""
        self._saved = changed

    def begin(self, number: int, loader: object, *, within: bool) -> None:
        """Describe the loader of a pass that begins, and warn about changes that the script has not made again.

        Args:
            number: the pass's number in its epoch.
            loader: the pass's loader.
            within: whether the run was saved within this pass. Otherwise the script may change the loader in this epoch
                as it would have done without the stop, so only values equal to the first epoch's count as lacking.
        """
        if number >= MAX_PASSES:
            return
        self._loaders[number] = loader
        self._first_loaders.setdefault(number, _reference(loader))
        now = self._begun[number] = _described(loader)
        changed = {name: texts for name, texts in self._saved.pop(str(number), {}).items() if name in now}
        firsts = {name: now[name]._replace(text=first) for name, (first, *_) in changed.items()}
        self._first.setdefault(number, {**now, **firsts})
        lacking = {
            name: next(text for text in before if text != now[name].text)
            for name, (first, *before) in changed.items()
            if {*before} != {now[name].text} and (within or now[name].text == first)
        }
        if lacking:
            name, *others = [name for name in lacking if name.rpartition(".")[0] not in lacking]
            warn(
                log,
                "changed-loader",
                "%s of a loader was %s in the previous attempt, but is %s now%s: batches differ if they depend on it",
                name,
                lacking[name],
                now[name].text,
                f" (changed too: {', '.join(others[:MAX_NAMES])})" if others else "",
            )

    def changed(self, current: int | None, *, is_reread: bool) -> dict[str, dict[str, list[str]]]:
        """Return, by pass number and name, the settings that differ from the first epoch, with the values then and now.

        Args:
            current: number of the current pass; None between two passes. An attempt that resumes the pass draws its
                order again: if a sampler has changed since the pass began, its value at that time comes third.
            is_reread: whether a resumed attempt reads the current pass from its beginning; then this compares the
                loader's state at that time.
        """
        found = {}
        for number, loader in self._loaders.items():
            begun, first_loader = self._begun[number], self._first_loaders[number]()
            is_alternating = first_loader is not None and first_loader is not loader
            now = begun if number == current and is_reread else _described(loader)
            differing = {}
            for name, first in self._first[number].items():
                if name not in now:
                    continue
                values = [now[name]]
                if number == current and name in begun and "sampler" in name.partition(".")[0]:
                    values.append(begun[name])
                if any(first.may_differ(value) for value in values):
                    known = first.text if not is_alternating and first.is_of_same_object(now[name]) else ""
                    differing[name] = [known, *dict.fromkeys(value.text for value in values)]
            if differing:
                found[str(number)] = differing
        return found


def describe(loader: object) -> dict[str, str]:
    """Return by path the settings of ``loader``, its data set and samplers, and digests of the data they hold."""
    return {path: part.text for path, part in _described(loader).items()}


def _described(loader: object) -> dict[str, Part]:
    """Return by path the numbers, strings, functions and data that ``loader``, its data set and samplers hold."""
    is_loader = isinstance(loader, DataLoader)
    roots = {name: getattr(loader, name) for name in LOADER_ATTRIBUTES} if is_loader else {"": loader}
    found: dict[str, Part] = {}
    waiting = deque((path, value, loader) for path, value in roots.items())
    seen = set[int]()
    while waiting and len(seen) < MAX_SETTINGS:
        path, value, owner = waiting.popleft()
        if isinstance(value, (bool, int, float, str, type(None))):
            if "/" not in str(value):  # file paths may differ between jobs
                found[path] = Part(repr(value)[:MAX_TEXT])
        elif id(value) not in seen and not isinstance(value, (nn.Parameter, type)) and not is_generator(value):
            seen.add(id(value))
            if digest := data_digest_of(value):
                found[path] = Part(digest, (_reference(value), _reference(owner)))
            if callable(value):
                found[path] = Part(_name(value))
            is_container = isinstance(value, (dict, list, tuple))
            parts = () if isinstance(value, (Tensor, np.ndarray)) else _parts(value)
            waiting.extend(
                (f"{path}.{name}".lstrip("."), part, owner if is_container else value) for name, part in parts
            )
    return found


def _reference(value: object) -> Callable[[], object]:
    try:
        return weakref.ref(value)
    except TypeError:  # a list has no weak references
        return lambda: None


def _name(value: Callable[..., Any]) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the items or attributes of ``value``; at most MAX_ITEMS items of a container."""
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield from attributes_of(value).items()
        return
    yield from ((str(name), part) for (name, part), _ in zip(items, range(MAX_ITEMS), strict=False))

"""What a script changes of its loaders while it trains: settings, counters and data that a resumed attempt may lack."""

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
from slipway.data.array_digest import digest_of_data
from slipway.rng.loader_generators import attributes_of, is_generator

log = logging.getLogger(__name__)

OF_A_LOADER = ("batch_size", "drop_last", "collate_fn", "worker_init_fn", "dataset", "sampler", "batch_sampler")
MAX_PASSES = 8
"""Passes of an epoch whose loaders are described: the first ones."""
MAX_SETTINGS = 200
MAX_ITEMS = 16
"""Items of a container that are described."""
MAX_TEXT = 60
MAX_NAMES = 8
"""Names of other settings in a warning."""


class Part(NamedTuple):
    """A setting of a loader, or data that it holds."""

    text: str
    """The value of a setting, or the digest of data."""
    objects: tuple[Callable[[], object], ...] = ()
    """References to data and to the object that has them as an attribute; of settings none."""

    def may_differ(self, now: Part) -> bool:
        """Return whether the script has changed this into ``now``; data that are loaded late are the same data."""
        is_late = bool(self.objects) != bool(now.objects) and "None" in {self.text, now.text}
        return self.text != now.text and not is_late

    def is_of_same_object(self, now: Part) -> bool:
        """Return whether ``now`` is of the same objects, and not of a loader that takes turns with another."""
        pairs = zip(self.objects, now.objects, strict=False)
        return not now.objects or any(was() is not None and was() is found() for was, found in pairs)


class LoaderSettings:
    """The loaders of each pass of an epoch, compared with what they were in its first epoch and at the save."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._first: dict[int, dict[str, Part]] = {}
        self._begun: dict[int, dict[str, Part]] = {}
        self._loaders: dict[int, object] = {}
        self._first_loaders: dict[int, Callable[[], object]] = {}
        self._saved: dict[str, dict[str, list[str]]] = {}

    def resume(self, changed: dict[str, dict[str, list[str]]]) -> None:
        """Compare with what ``changed`` returned at the save."""
        self._saved = changed

    def begin(self, number: int, loader: object, *, within: bool) -> None:
        """Describe the loader of a pass that begins, and warn of what the script has not changed again.

        Args:
            number: of the pass in its epoch.
            loader: of it.
            within: whether the run was saved within this pass. Otherwise the script may change it in this epoch as it
                would have done without the stop, and only what is as in the first epoch is known to differ.
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
                "%s of a loader was %s in the attempt before, and is %s now%s: other batches, if they depend on it",
                name,
                lacking[name],
                now[name].text,
                f"; likewise {', '.join(others[:MAX_NAMES])}" if others else "",
            )

    def changed(self, current: int | None, *, is_reread: bool) -> dict[str, dict[str, list[str]]]:
        """Return, by the number of the pass, what differs from the first epoch, and the values then and now.

        Args:
            current: number of the current pass; None between two. An attempt that resumes it draws its order again: if
                a sampler has changed since, the value at its beginning comes third.
            is_reread: whether it is read again from its beginning: its loader counts as it was there.
        """
        found = {}
        for number, loader in self._loaders.items():
            begun, first_loader = self._begun[number], self._first_loaders[number]()
            takes_turns = first_loader is not None and first_loader is not loader
            now = begun if number == current and is_reread else _described(loader)
            differing = {}
            for name, first in self._first[number].items():
                if name not in now:
                    continue
                values = [now[name]]
                if number == current and name in begun and "sampler" in name.partition(".")[0]:
                    values.append(begun[name])
                if any(first.may_differ(value) for value in values):
                    known = first.text if not takes_turns and first.is_of_same_object(now[name]) else ""
                    differing[name] = [known, *dict.fromkeys(value.text for value in values)]
            if differing:
                found[str(number)] = differing
        return found


def describe(loader: object) -> dict[str, str]:
    """Return the settings of ``loader``, its data set and samplers, and digests of the data they hold, by path."""
    return {path: part.text for path, part in _described(loader).items()}


def _described(loader: object) -> dict[str, Part]:
    """Return the numbers, words, functions and data among what ``loader``, its data set and samplers hold, by path."""
    is_loader = isinstance(loader, DataLoader)
    roots = {name: getattr(loader, name) for name in OF_A_LOADER} if is_loader else {"": loader}
    found: dict[str, Part] = {}
    waiting = deque((path, value, loader) for path, value in roots.items())
    seen = set[int]()
    while waiting and len(seen) < MAX_SETTINGS:
        path, value, owner = waiting.popleft()
        if isinstance(value, (bool, int, float, str, type(None))):
            if "/" not in str(value):  # paths of a job differ from the next one's
                found[path] = Part(repr(value)[:MAX_TEXT])
        elif id(value) not in seen and not isinstance(value, (nn.Parameter, type)) and not is_generator(value):
            seen.add(id(value))
            if digest := digest_of_data(value):
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
    except TypeError:  # of a list
        return lambda: None


def _name(value: Callable[..., Any]) -> str:
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    """Yield what ``value`` holds, by name."""
    if isinstance(value, dict):
        items: Iterable[tuple[Any, Any]] = value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        yield from attributes_of(value).items()
        return
    yield from ((str(name), part) for (name, part), _ in zip(items, range(MAX_ITEMS), strict=False))

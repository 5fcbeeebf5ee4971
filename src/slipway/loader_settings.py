"""What a script changes of its loaders while it trains: settings and counters that a resumed attempt may lack."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from slipway.errors import warn
from slipway.own_generators import attributes_of, is_generator

log = logging.getLogger(__name__)

OF_A_LOADER = ("batch_size", "drop_last", "collate_fn", "worker_init_fn", "dataset", "sampler", "batch_sampler")
MAX_PASSES = 8
"""Passes of an epoch whose loaders are described: the first ones."""
MAX_SETTINGS = 200
MAX_ITEMS = 16
"""Items of a container that are described."""
MAX_TEXT = 60


class LoaderSettings:
    """The loaders of each pass of an epoch, compared with what they were in its first epoch and at the save."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._first: dict[int, dict[str, str]] = {}
        self._begun: dict[int, dict[str, str]] = {}
        self._loaders: dict[int, object] = {}
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
        now = self._begun[number] = describe(loader)
        changed = self._saved.pop(str(number), {})
        self._first.setdefault(number, {**now, **{name: first for name, (first, _) in changed.items() if name in now}})
        for name, (first, saved) in changed.items():
            if name in now and now[name] != saved and (within or now[name] == first):
                warn(
                    log,
                    "changed-loader",
                    "%s of a loader was %s when the run was saved, and is %s now: other batches, if they depend on it",
                    name,
                    saved,
                    now[name],
                )

    def changed(self, *, rereading: int | None) -> dict[str, dict[str, list[str]]]:
        """Return, by the number of the pass, what differs from the first epoch, and the value then and now.

        Args:
            rereading: number of the current pass if it is read again from its beginning: its loader counts as it was
                there.
        """
        found = {}
        for number, loader in self._loaders.items():
            now = self._begun[number] if number == rereading else describe(loader)
            first = self._first[number]
            differing = {name: [first[name], now[name]] for name in first if now.get(name, first[name]) != first[name]}
            if differing:
                found[str(number)] = differing
        return found


def describe(loader: object) -> dict[str, str]:
    """Return the numbers, words and functions among the settings of ``loader``, its data set and samplers, by path."""
    roots = {name: getattr(loader, name) for name in OF_A_LOADER} if isinstance(loader, DataLoader) else {"": loader}
    found: dict[str, str] = {}
    waiting, seen = deque(roots.items()), set[int]()
    while waiting and len(seen) < MAX_SETTINGS:
        path, value = waiting.popleft()
        if isinstance(value, (bool, int, float, str, type(None))):
            if "/" not in str(value):  # paths of a job differ from the next one's
                found[path] = repr(value)[:MAX_TEXT]
        elif id(value) not in seen and not isinstance(value, (Tensor, type)) and not is_generator(value):
            seen.add(id(value))
            if callable(value):
                found[path] = _name(value)
            waiting.extend((f"{path}.{name}".lstrip("."), part) for name, part in _parts(value))
    return found


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

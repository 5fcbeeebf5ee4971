"""Warnings for objects that a script should pass to its session: changing modules, schedulers of its optimizers."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor, nn

from slipway.base.errors import warn
from slipway.rng.loader_generators import reachable
from slipway.state.attribute_values import is_data
from slipway.state.module_attributes import BASE_ATTRIBUTES
from slipway.state.module_objects import CONTAINERS, MAX_ITEMS, Look, text_of_numbers
from slipway.state.schedulers import has_unsaved_scheduler, is_missing, schedulers_in
from slipway.state.wrappers import wrapped_child

log = logging.getLogger(__name__)

PACKAGES = {"site-packages", "dist-packages"}
"""Folder names of installed packages."""
Content = dict[Any, str | int | None]
"""Contents of a module: text or digest for each tensor and attribute, None if it has none."""


def objects_of(frame: FrameType | None) -> list[Any]:
    """Return the objects that are reachable from the local variables of ``frame`` and its callers."""
    variables: list[Any] = []
    while frame:
        variables += frame.f_locals.values()
        frame = frame.f_back
    return [*reachable(variables)]


class UnsavedObjects:
    """Tracks objects that the script's variables hold before its loops and that the session does not save."""

    def __init__(self, objects: Mapping[str, Mapping[str, Any]]) -> None:
        """Ignore ``objects``, the session's objects by kind and name."""
        self._optimizers = dict(objects["optimizer"])
        given = [each for named in objects.values() for each in named.values()]
        self._schedulers = schedulers_in(objects)
        self._known = {each for module in _modules_in(given) for each in _identities(module)}
        self._seen: weakref.WeakKeyDictionary[nn.Module, Content] = weakref.WeakKeyDictionary()

    def find(self, objects: Iterable[Any]) -> None:
        """Record the contents of the modules among the script's ``objects``, and warn of schedulers among them."""
        found = [*objects]
        for module in found:
            if isinstance(module, nn.Module) and module not in self._seen and id(module) not in self._known:
                self._seen[module] = self._content(module)
        self.find_schedulers(found)

    def find_schedulers(self, objects: Iterable[Any]) -> None:
        """Warn of schedulers of the session's optimizers among the script's ``objects``."""
        for name, optimizer in [*self._optimizers.items()]:
            if not hasattr(optimizer, "param_groups") or has_unsaved_scheduler(optimizer, self._schedulers):
                del self._optimizers[name]  # not a torch optimizer, or state_dict warns of its scheduler
        for found in objects:
            if self._optimizers and not isinstance(found, nn.Module):
                with contextlib.suppress(Exception):  # raised by attribute access on an object of the script
                    self._warn_of_scheduler(found)

    def warn(self) -> None:
        """Warn once of each module that has changed since ``find``; call this at a save."""
        for module, before in [*self._seen.items()]:
            if any(before.get(place, "") not in {None, now} for place, now in self._content(module).items() if now):
                del self._seen[module]
                self._known |= _identities(module)  # do not warn of its parts either
                warn(
                    log,
                    "module-not-given",
                    "a module of the script, a %s, has changed since the loops began and is not saved: pass it, "
                    'Session(model={"model": model, "other": ...})',
                    type(module).__name__,
                )

    def _warn_of_scheduler(self, found: object) -> None:
        for name, optimizer in [*self._optimizers.items()]:
            if is_missing(found, optimizer, self._schedulers):
                del self._optimizers[name]
                text = "%s, a scheduler of %s, was not passed to the session"
                warn(log, "scheduler-not-given", text, type(found).__name__, name)

    def _content(self, module: nn.Module) -> Content:
        """Return digests of the tensors and attributes of ``module`` that are not known; large ones are sampled."""
        look = Look(lambda: self._known)
        tensors = [tensor for tensor in _tensors(module) if id(tensor) not in self._known]
        attributes = {
            (id(part), name): look.digest(value)
            for part in module.modules()
            if id(part) not in self._known
            for name, value in _attributes(part)
        }
        return {**{number: _text(tensor) or "" for number, tensor in enumerate(tensors)}, **attributes}


def _attributes(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the plain data that the script's code keeps in ``module``; modules of other packages may hold caches."""
    kind: type = type(module)
    if not wrapped_child(module) and not _is_installed(kind):
        for name, value in vars(module).items():
            is_long = isinstance(value, CONTAINERS) and len(value) > MAX_ITEMS  # its ends are enough
            if name not in {*BASE_ATTRIBUTES, "training"} and (is_long or is_data(value)):
                yield name, value


@functools.cache
def _is_installed(kind: type) -> bool:
    """Return whether ``kind`` is a class of an installed package other than torch."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None) or ""
    return kind.__module__.partition(".")[0] != "torch" and not PACKAGES.isdisjoint(Path(file).parts)


def _modules_in(values: Iterable[Any]) -> Iterator[nn.Module]:
    return (value for value in reachable(values) if isinstance(value, nn.Module))


def _text(tensor: Tensor) -> str | None:
    """Return text that represents ``tensor``; None if its data is not readable, for instance on the meta device."""
    try:
        return text_of_numbers(tensor)
    except Exception:  # noqa: BLE001 -- the script may use any tensor subclass
        return None


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _identities(module: nn.Module) -> set[int]:
    """Return the ``id`` of each submodule and tensor of ``module``, and of ``module`` itself."""
    return {*map(id, (*module.modules(), *_tensors(module)))}

"""Plugin registry: schedulers, launchers and runtimes are modules named as in site files; a new file is a plugin."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import Any, Tuple


@functools.cache
def names(package: str) -> Tuple[str, ...]:
    """Return the names of the modules in ``package`` in alphabetical order, without importing them."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__)))


def load(package: str, name: str, attribute: str) -> Any:
    """Return ``attribute`` of the module ``name`` of ``package``."""
    return getattr(importlib.import_module(f"{package}.{name}"), attribute)

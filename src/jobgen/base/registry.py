"""Schedulers, launchers and container runtimes are modules named as in a site's file: adding a file adds one."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, List


def names(package: str) -> List[str]:
    """Return what ``package`` has, in alphabetical order, without importing it all."""
    return sorted(module.name for module in pkgutil.iter_modules(importlib.import_module(package).__path__))


def load(package: str, name: str, attribute: str) -> Any:
    """Return ``attribute`` of the module ``name`` of ``package``."""
    return getattr(importlib.import_module(f"{package}.{name}"), attribute)

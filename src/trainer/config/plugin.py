"""User-defined models and data sets: ``--arch package.module:factory`` and ``--dataset package.module:factory``.

Python searches its own path first, then the folder in which the trainer was started. A module in that folder cannot
shadow an installed one: a ``torch.py`` or ``trainer.py`` there is never imported.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from slipway.base.errors import did_you_mean, one_line
from trainer.config.errors import ConfigError, TrainerError
from trainer.config.settings import PLUGIN

SEPARATOR = ":"
"""Distinguishes a user-defined name from a built-in one."""


def call_factory(option: str, name: str, *arguments: Any) -> Any:
    """Call the factory ``name`` with ``arguments`` and return its result.

    Raises:
        ConfigError: if the factory does not exist or fails.
    """
    factory = find_factory(option, name)
    try:
        return factory(*arguments)
    except TrainerError:
        raise
    except Exception as error:  # user code may raise anything
        raise ConfigError("bad-plugin", f"{option} {name} fails: {reason_of(error)}") from error


def find_factory(option: str, name: str) -> Callable[..., Any]:
    """Import and return the factory ``name``.

    Raises:
        ConfigError: if the module cannot be imported or does not contain the factory; the message names it.
    """
    if not re.fullmatch(PLUGIN, name):
        raise ConfigError("bad-plugin", f"{option} {name}: write package.module:factory.")
    path, _, attribute = name.partition(SEPARATOR)
    folder = os.getcwd()  # noqa: PTH109 -- sys.path holds strings
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and (path == error.name or path.startswith(f"{error.name}.")):
            raise ConfigError(
                "bad-plugin", f"{option} {name}: no module {error.name!r} in this environment or in {folder}."
            ) from error
        raise ConfigError("bad-plugin", f"{option} {name}: {path} cannot be imported: {reason_of(error)}") from error
    except Exception as error:  # user code may raise anything
        raise ConfigError("bad-plugin", f"{option} {name}: {path} cannot be imported: {reason_of(error)}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        hint = did_you_mean(attribute, [key for key, value in vars(module).items() if callable(value)])
        raise ConfigError(
            "bad-plugin", f"{option} {name}: {module.__file__} has no function or class {attribute!r}.{hint}"
        )
    return factory


def reason_of(error: BaseException) -> str:
    """Return the type and message of an exception on one line, at most 300 characters."""
    return one_line(f"{type(error).__name__}: {error}")[:300]

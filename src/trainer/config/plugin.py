"""Models and data sets of your own: ``--arch package.module:factory`` and ``--dataset package.module:factory``.

The module is found where Python finds others, and then in the folder in which the trainer was started. There it can
hide none of the environment's: a ``torch.py`` or ``trainer.py`` in that folder is never imported.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from slipway.base.errors import one_line
from trainer.config.errors import ConfigError, TrainerError, did_you_mean
from trainer.config.settings import PLUGIN

SEPARATOR = ":"
"""What a name of this form has, and no name of ours."""


def call_factory(option: str, name: str, *arguments: Any) -> Any:
    """Return what the factory ``name`` returns for ``arguments``.

    Raises:
        ConfigError: if there is no such factory, or it fails.
    """
    factory = find_factory(option, name)
    try:
        return factory(*arguments)
    except TrainerError:
        raise
    except Exception as error:  # likewise
        raise ConfigError("bad-plugin", f"{option} {name} fails: {reason_of(error)}") from error


def find_factory(option: str, name: str) -> Callable[..., Any]:
    """Return the factory that ``name`` says.

    Raises:
        ConfigError: naming what cannot be imported, or is not there.
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
                "bad-plugin", f"{option} {name}: there is no module {error.name!r} in this environment or in {folder}."
            ) from error
        raise ConfigError("bad-plugin", f"{option} {name}: {path} cannot be imported: {reason_of(error)}") from error
    except Exception as error:  # a module of somebody else's may raise anything
        raise ConfigError("bad-plugin", f"{option} {name}: {path} cannot be imported: {reason_of(error)}") from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        hint = did_you_mean(attribute, [key for key, value in vars(module).items() if callable(value)])
        raise ConfigError(
            "bad-plugin", f"{option} {name}: {module.__file__} has no function or class {attribute!r}.{hint}"
        )
    return factory


def reason_of(error: BaseException) -> str:
    """Return what an exception says, on one line."""
    return one_line(f"{type(error).__name__}: {error}")[:300]

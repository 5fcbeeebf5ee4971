"""The errors that a user can act on: one line each, saying what, where, and what to do."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from slipway.layout import EXIT_CONFIG, EXIT_USAGE

T = TypeVar("T")

NO_WRITES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
"""Error numbers of a file system that takes no writes until somebody acts; others (EIO, ESTALE) may pass."""


class TrainerError(Exception):
    """Training cannot go on; the message says why and what to do."""

    exit_code = 1
    final = True
    """Whether trying again unchanged cannot help, so that the attempt leaves the verdict "failed"."""
    everywhere = False
    """Whether every rank raises it alike, so that rank 0 speaks for all."""


class ConfigError(TrainerError):
    """The configuration, its data or its environment is wrong."""

    exit_code = EXIT_CONFIG


class UsageError(ConfigError):
    """A flag is unknown, or its value impossible."""

    exit_code = EXIT_USAGE


def is_final(error: BaseException) -> bool:
    """Return whether trying again unchanged cannot help after ``error``.

    Of errors that are no TrainerError this holds for a file system that takes no writes. safetensors names the error
    number in its text only.
    """
    if isinstance(error, TrainerError):
        return error.final
    if isinstance(error, OSError):
        return error.errno in NO_WRITES
    return any(int(number) in NO_WRITES for number in re.findall(r"\(os error (\d+)\)", str(error)))


def one_line(text: str) -> str:
    """Return ``text`` on one line, without control characters and what else cannot be printed."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the choice nearest to ``name``, or "" where none is near."""
    nearest = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def choose(table: Mapping[str, T], name: str, *, what: str) -> T:
    """Return ``table[name]``; where there is none, raise a ConfigError that lists the choices, nearest first."""
    if name not in table:
        raise ConfigError(f"unknown {what} {name!r}.{did_you_mean(name, table)} Valid: {', '.join(sorted(table))}.")
    return table[name]

"""The errors that a user can act on: one line each, saying what, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from slipway.errors import (
    AloneError,
    DamagedCheckpointError,
    FolderHoldsRunError,
    FolderInUseError,
    FolderNotWritableError,
    NoCheckpointError,
    OlderCheckpointError,
    RanksNotNamedError,
    RendezvousError,
    SlipwayError,
)
from slipway.layout import EXIT_CONFIG, EXIT_USAGE

T = TypeVar("T")

REMEDIES: dict[type[SlipwayError], str] = {
    FolderInUseError: "Use another --output-dir, or stop that run.",
    FolderNotWritableError: "Name another one by --output-dir.",
    AloneError: "Run it with --backend ddp under torchrun, with --backend horovod under horovodrun or MPI, or by a "
    "script of jobscripts/, which name the ranks; if each process is to train by itself, unset that variable.",
    RanksNotNamedError: "Start it with torchrun, with --nproc-per-node N, or name the ranks in the job script.",
    RendezvousError: "Start it with torchrun or a job script, which set them, or name a file by --init-method file://.",
    DamagedCheckpointError: "--resume auto takes the last valid one of the run in --output-dir.",
    NoCheckpointError: "Look at --resume.",
    OlderCheckpointError: "Go on from it in another --output-dir.",
    FolderHoldsRunError: "--resume auto continues it; a new run, and --selftest, need another --output-dir.",
}
"""What to do about an error of slipway, in the words of this program's flags."""


class TrainerError(SlipwayError):
    """Training cannot go on; the message says why and what to do."""


class ConfigError(TrainerError):
    """The configuration, its data or its environment is wrong."""

    exit_code = EXIT_CONFIG


class UsageError(ConfigError):
    """A flag is unknown, or its value impossible."""

    exit_code = EXIT_USAGE


def explain(error: BaseException) -> str:
    """Return what ``error`` says, and what to do about it."""
    remedy = next((REMEDIES[cls] for cls in type(error).__mro__ if cls in REMEDIES), "")
    return f"{error} {remedy}".rstrip()


def describe(error: BaseException) -> str:
    """Return any error as text, of its first line where it is none of ours."""
    return explain(error) if isinstance(error, SlipwayError) else str(error).partition("\n")[0] or type(error).__name__


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the choice nearest to ``name``, or "" where none is near."""
    nearest = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def choose(table: Mapping[str, T], name: str, *, what: str) -> T:
    """Return ``table[name]``; where there is none, raise a ConfigError that lists the choices, nearest first."""
    if name not in table:
        raise ConfigError(f"unknown {what} {name!r}.{did_you_mean(name, table)} Valid: {', '.join(sorted(table))}.")
    return table[name]

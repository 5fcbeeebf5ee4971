"""Cause file: why an attempt ended before training, written to logs/N by the first failing rank.

Launchers hide the exit codes of ranks. They also end the other ranks, which then report consequences.
docs/reference/verdicts.md describes how the job script reads the file.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from pathlib import Path

from slipway.base.contract import ATTEMPT_CAUSE, CAUSE_CODES, LOGS
from slipway.base.environment import read_environment
from slipway.base.errors import SlipwayError, explain, one_line

LONGEST = 1000
"""Maximum characters of the sentence."""
_left: list[Path] = []
"""Files that this process has written and not withdrawn."""


def write_cause(error: SlipwayError, *, folder: str | Path | None, variables: Mapping[str, str]) -> None:
    """Write the cause file if the exit code of ``error`` is in CAUSE_CODES and this rank has not trained yet.

    The first rank wins. Without a job script, which creates logs/N, nothing is written. Write errors are ignored.

    Args:
        error: the error that ends this rank.
        folder: the run folder; None if it is not determined yet.
        variables: the environment of this process.
    """
    if folder is None or error.exit_code not in CAUSE_CODES or error.in_training:
        return
    with contextlib.suppress(OSError, SlipwayError):  # a second error must not hide the first
        environment = read_environment(variables)
        if not environment.attempt:
            return
        rank = environment.variables.get("RANK", "")
        where = f"{socket.gethostname()}: {f'[rank {rank}] ' if rank else ''}"
        if error.raised_on_all_ranks:  # this rank is only the first to write it
            where = ""
        path = Path(folder, LOGS, str(environment.attempt), ATTEMPT_CAUSE)
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{error.exit_code} {error.slug}: {one_line(where + explain(error))[:LONGEST]}\n")
        _left.append(path)


def remove_cause() -> None:
    """Remove this process's cause file, because its script caught the error and continues."""
    while _left:
        with contextlib.suppress(OSError):
            _left.pop().unlink()

"""The cause: why an attempt ended before training, left in logs/N by the first rank that was refused.

Launchers hide the exit codes of ranks, and end the other ranks, which then report consequences. docs/contract.md says
how the job script reads the file.
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
"""Characters of a sentence, at most."""
_left: list[Path] = []
"""The files that this process has written, and not withdrawn."""


def leave_cause(error: SlipwayError, *, folder: str | Path | None, variables: Mapping[str, str]) -> None:
    """Write the cause, if the exit code of ``error`` is in CAUSE_CODES and this rank has not trained before it.

    The first rank wins. Nothing is written without a job script, which makes logs/N. An error in writing is ignored.

    Args:
        error: what ends this rank.
        folder: the run folder; None if it has no name yet.
        variables: the environment of this process.
    """
    if folder is None or error.exit_code not in CAUSE_CODES or error.in_training:
        return
    with contextlib.suppress(OSError, SlipwayError):  # it must not hide what went wrong
        environment = read_environment(variables)
        if not environment.attempt:
            return
        rank = environment.variables.get("RANK", "")
        where = f"{socket.gethostname()}: {f'[rank {rank}] ' if rank else ''}"
        if error.raised_on_all_ranks:  # this one is only the first that writes it
            where = ""
        path = Path(folder, LOGS, str(environment.attempt), ATTEMPT_CAUSE)
        with path.open("x", encoding="utf-8") as file:
            file.write(f"{error.exit_code} {error.slug}: {one_line(where + explain(error))[:LONGEST]}\n")
        _left.append(path)


def withdraw_cause() -> None:
    """Remove what this process has left: its script has caught the error, and continues."""
    while _left:
        with contextlib.suppress(OSError):
            _left.pop().unlink()

"""``slipway.peek``: the position of a run, read before its session opens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from slipway.base.contract import CHECKPOINTS
from slipway.base.errors import SessionError
from slipway.checkpoint.header import Position
from slipway.checkpoint.store import CheckpointStore
from slipway.data.feed import RankPosition
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator
from slipway.script.opening import script_run_folder


class Peek(NamedTuple):
    """Position of a run."""

    epoch: int
    """The epoch in which the run continues, counted from 0."""
    step: int
    """Optimizer steps done."""
    is_within: bool = False
    """Whether the run was saved within that epoch, so that code at its beginning has already run."""

    def has_begun(self, epoch: int) -> bool:
        """Return whether the run has begun ``epoch``, counted from 0, so that code at its beginning has run."""
        return epoch < self.epoch or (epoch == self.epoch and self.is_within)


_found: dict[str, Peek] = {}
"""Results of ``peek`` in this process, by folder; a session that resumes in a folder removes its entry."""


def peek(folder: str | os.PathLike[str] | None = None) -> Peek | None:
    """Return the position of the run in ``folder``, for scripts that need it before a session opens.

    ::

        found = slipway.peek()
        if found and found.has_begun(5):  # the loop has already added the group
            optimizer.add_param_group({"params": model.head.parameters()})

    Each rank may call it independently, before the ranks have joined the process group. It reads the newest
    checkpoint's manifest and no tensors. If the tensors are damaged, the session falls back to an older checkpoint and
    therefore raises an error; start the script again, and ``peek`` returns the older position.

    Args:
        folder: the run folder. Default: that of ``Session``, RUN_DIR, or else runs/ and the script's name.

    Returns:
        Peek | None: ``epoch``, ``step``, ``is_within`` and ``has_begun``; None if the folder holds no checkpoint.

    Raises:
        AllDamagedError: if checkpoints exist, and none has a valid manifest.
        CannotReadError: if the checkpoint folder or a manifest cannot be read.
    """
    path = script_run_folder(folder)
    header = CheckpointStore(path / CHECKPOINTS, keep=1).newest_header()
    found = None
    if header:
        positions = [RankPosition(*each) for each in header.facts.get("feed", {}).get("places", [])]
        is_within = any(position.in_epoch != (0, 0) for position in positions)
        found = Peek(header.position.epoch, header.position.step, is_within)
    _found[os.path.realpath(path)] = found or Peek(0, 0)
    return found


def require_peeked_position(folder: Path, position: Position, comm: Communicator) -> None:
    """Check that the run in ``folder`` resumes at the position that ``peek`` returned; all ranks must call this.

    Raises:
        SessionError: on every rank, if ``peek`` has returned another position than ``position`` on one of them.
    """
    key = os.path.realpath(folder)
    own = [_found[key]] if key in _found else []
    differing = {tuple(each[:2]) for found in all_gather_json(comm, own) for each in found}
    differing -= {(position.epoch, position.step)}
    if differing:
        epoch, step = min(differing)
        error = SessionError(
            "peeked-elsewhere",
            f"slipway.peek returned epoch {epoch}, step {step} for {folder}, but the newest valid checkpoint is at "
            f"epoch {position.epoch}, step {position.step}. Start the script again: peek then returns this position.",
        )
        error.raised_on_all_ranks = error.retryable = True
        raise error
    _found.pop(key, None)

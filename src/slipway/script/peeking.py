"""``slipway.peek``: where a run stands, before its session opens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from slipway.base.contract import CHECKPOINTS
from slipway.base.errors import SessionError
from slipway.checkpoint.header import Position
from slipway.checkpoint.store import CheckpointStore
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator
from slipway.script.opening import folder_of_script


class Peek(NamedTuple):
    """Where a run stands."""

    epoch: int
    """The epoch in which it continues, from 0."""
    step: int
    """Optimiser steps done."""
    is_within: bool = False
    """Whether it was saved within that epoch, some of whose code has run."""

    def has_begun(self, epoch: int) -> bool:
        """Return whether the run has begun ``epoch``, counted from 0: code at its beginning has run before."""
        return epoch < self.epoch or (epoch == self.epoch and self.is_within)


_found: dict[str, Peek] = {}
"""What ``peek`` has returned in this process, by folder, until a session has resumed there."""


def peek(folder: str | os.PathLike[str] | None = None) -> Peek | None:
    """Return where the run in ``folder`` stands, for what must be known before a session opens.

    ::

        found = slipway.peek()
        if found and found.has_begun(5):  # then the loop has added it before
            optimizer.add_param_group({"params": model.head.parameters()})

    Each rank may call it by itself, before the ranks have joined. It reads the manifest of the newest checkpoint, no
    tensors: if these are damaged, the session resumes from an older checkpoint, and is refused, once.

    Args:
        folder: the run folder, by default that of ``Session``: RUN_DIR, or else runs/ and the script's name.

    Returns:
        Peek | None: ``epoch``, ``step``, ``is_within`` and ``has_begun``; None where nothing is saved.

    Raises:
        AllDamagedError: if there are checkpoints, and no manifest is valid.
        CannotReadError: if the folder of the checkpoints, or a manifest, cannot be read.
    """
    path = folder_of_script(folder)
    header = CheckpointStore(path / CHECKPOINTS, keep=1).newest_header()
    found = None
    if header:
        places = header.facts.get("feed", {}).get("places", [])
        is_within = any(place[:2] != [0, 0] for place in places)
        found = Peek(header.position.epoch, header.position.step, is_within)
    _found[os.path.realpath(path)] = found or Peek(0, 0)
    return found


def require_as_peeked(folder: Path, position: Position, comm: Communicator) -> None:
    """Make sure that the run in ``folder`` resumes where ``peek`` has said; all ranks must call this.

    Raises:
        SessionError: on every rank, if ``position`` is another place than ``peek`` has returned on any of them.
    """
    key = os.path.realpath(folder)
    own = [_found[key]] if key in _found else []
    differing = {tuple(each[:2]) for found in all_gather_json(comm, own) for each in found}
    differing -= {(position.epoch, position.step)}
    if differing:
        epoch, step = min(differing)
        error = SessionError(
            "peeked-elsewhere",
            f"slipway.peek returned epoch {epoch} and step {step} for {folder}, and the newest valid checkpoint is of "
            f"epoch {position.epoch} and step {position.step}. Start the script again: peek then returns that.",
        )
        error.raised_on_all_ranks = error.retryable = True
        raise error
    _found.pop(key, None)

"""``slipway.peek``: where a run stands, before its session opens."""

from __future__ import annotations

import os
from typing import NamedTuple

from slipway.checkpoint.store import CheckpointStore
from slipway.layout import CHECKPOINTS
from slipway.opening import folder_of_script


class Peek(NamedTuple):
    """Where a run stands."""

    epoch: int
    """The epoch in which it continues, from 0."""
    step: int
    """Optimiser steps done."""


def peek(folder: str | os.PathLike[str] | None = None) -> Peek | None:
    """Return where the run in ``folder`` stands, for what must be known before a session opens.

    ::

        found = slipway.peek()
        if found and found.epoch >= 5:
            unfreeze(model)  # as it was when the run was saved

    Each rank may call it by itself, before the ranks have joined. It reads the manifest of the newest checkpoint, no
    tensors.

    Args:
        folder: the run folder, by default that of ``Session``: RUN_DIR, or else runs/ and the script's name.

    Returns:
        Peek | None: ``epoch`` and ``step``; None where nothing is saved.

    Raises:
        AllDamagedError: if there are checkpoints, and no manifest is valid.
        CannotReadError: if the folder of the checkpoints, or a manifest, cannot be read.
    """
    header = CheckpointStore(folder_of_script(folder) / CHECKPOINTS, keep=1).newest_header()
    return Peek(header.position.epoch, header.position.step) if header else None

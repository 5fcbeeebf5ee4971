"""Whether the disk has room for the checkpoints of a run, asked before the first is written."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from slipway.base.errors import warn
from slipway.checkpoint.format import Checkpoint

log = logging.getLogger(__name__)

BESIDES = 2
"""Checkpoints besides those that are kept: the best, and the one that is being written."""
QUOTA_SCRIPT = Path(__file__).with_name("quota_left.sh")
QUOTA_LIMIT = 12
"""Seconds that it may take; each of its programs has 4."""


class Room(NamedTuple):
    """How many bytes, or inodes, can be written."""

    amount: int
    quota: str = ""
    """Whose quota it is that leaves no more: user, group or project; "" where that is free on the whole disk."""

    def __str__(self) -> str:
        return f"left of the {self.quota} quota" if self.quota else "free"


def warn_of_little_space(checkpoint: Checkpoint, folder: Path, *, keep: int, quota: str | None = None) -> None:
    """Warn if ``folder`` has not the bytes or the inodes for ``keep`` checkpoints like ``checkpoint``, and two more.

    Args:
        checkpoint: the first.
        folder: for all of them.
        keep: number of the newest that stay.
        quota: what quotas leave, as quota_left.sh says it; None: ask.
    """
    count = keep + BESIDES
    size = sum(tensor.nbytes for named in checkpoint.tensors.values() for tensor in named.values())
    needed = len(checkpoint.tensors) + 2  # the folder and the manifest
    space, inodes = _room(folder, quota)
    if size * count > space.amount:
        warn(
            log,
            "low-disk-space",
            "%s has %.1f GB %s, and %d checkpoints of %.1f GB need %.1f GB: keep fewer, or take another folder",
            *(folder, space.amount / 1e9, space, count, size / 1e9, size * count / 1e9),
        )
    if inodes and needed * count > inodes.amount:
        warn(
            log,
            "low-disk-space",
            "%s has %d inodes %s, and %d checkpoints need %d",
            folder,
            inodes.amount,
            inodes,
            count,
            needed * count,
        )


def _room(folder: Path, quota: str | None) -> tuple[Room, Room | None]:
    """Return how many bytes and inodes can be written: what the disk has free, or a quota leaves; None: not counted."""
    disk = os.statvfs(folder)
    space = Room(disk.f_bavail * disk.f_frsize)
    inodes = Room(disk.f_favail) if disk.f_files else None
    words = (_ask(folder) if quota is None else quota).split()
    if len(words) == 4:  # noqa: PLR2004 -- KIB WHOSE INODES WHOSE
        if words[0].isdecimal():
            space = min(space, Room(int(words[0]) * 1024, words[1]))
        if words[2].isdecimal():
            left = Room(int(words[2]), words[3])
            inodes = min(inodes, left) if inodes else left
    return space, inodes


def _ask(folder: Path) -> str:
    try:
        done = subprocess.run(
            ["sh", QUOTA_SCRIPT, folder], capture_output=True, text=True, timeout=QUOTA_LIMIT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout

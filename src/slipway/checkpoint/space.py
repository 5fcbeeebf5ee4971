"""Check that the disk has space for a run's checkpoints, before the first one is written."""

from __future__ import annotations

import logging
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from slipway.base.errors import warn
from slipway.checkpoint.format import Checkpoint

log = logging.getLogger(__name__)

EXTRA_CHECKPOINTS = 2
"""Checkpoints in addition to the newest ones kept: the best, and the one that is being written."""
QUOTA_SCRIPT = Path(__file__).with_name("quota_left.sh")
QUOTA_LIMIT = 12
"""Time limit of the script in seconds; each program that it runs has 4 s."""


class AvailableSpace(NamedTuple):
    """Available bytes or inodes."""

    amount: int
    quota: str = ""
    """Kind of the quota that limits the amount: user, group or project; "" if it is the disk's free space."""

    def __str__(self) -> str:
        return f"left of the {self.quota} quota" if self.quota else "free"


def warn_if_low_space(checkpoint: Checkpoint, folder: Path, *, keep: int, quota: str | None) -> None:
    """Warn if ``folder`` lacks bytes or inodes for ``keep`` checkpoints like ``checkpoint``, and two more.

    Args:
        checkpoint: the first checkpoint.
        folder: the folder of all checkpoints.
        keep: number of newest checkpoints to keep.
        quota: remaining quota, as quota_left.sh prints it; None to run that script.
    """
    count = keep + EXTRA_CHECKPOINTS
    size = sum(tensor.nbytes for named in checkpoint.tensors.values() for tensor in named.values())
    needed = len(checkpoint.tensors) + 2  # the folder and the manifest
    space, inodes = _room(folder, quota)
    if size * count > space.amount:
        warn(
            log,
            "low-disk-space",
            "%s has %.1f GB %s, but %d checkpoints of %.1f GB need %.1f GB: keep fewer, or use another folder",
            *(folder, space.amount / 1e9, space, count, size / 1e9, size * count / 1e9),
        )
    if inodes and needed * count > inodes.amount:
        warn(
            log,
            "low-disk-space",
            "%s has %d inodes %s, but %d checkpoints need %d",
            folder,
            inodes.amount,
            inodes,
            count,
            needed * count,
        )


def _room(folder: Path, quota: str | None) -> tuple[AvailableSpace, AvailableSpace | None]:
    """Return the available bytes and inodes, limited by disk and quotas; None if the disk does not count inodes."""
    disk = os.statvfs(folder)
    space = AvailableSpace(disk.f_bavail * disk.f_frsize)
    inodes = AvailableSpace(disk.f_favail) if disk.f_files else None
    words = (_ask(folder) if quota is None else quota).split()
    if len(words) == 4:  # noqa: PLR2004 -- KIB WHOSE INODES WHOSE
        if words[0].isdecimal():
            space = min(space, AvailableSpace(int(words[0]) * 1024, words[1]))
        if words[2].isdecimal():
            left = AvailableSpace(int(words[2]), words[3])
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

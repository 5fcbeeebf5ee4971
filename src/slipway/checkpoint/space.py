"""Whether the disk has room for the checkpoints of a run, asked before the first is written."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from slipway.checkpoint.folder import Checkpoint

log = logging.getLogger(__name__)

BESIDES = 2
"""Checkpoints besides those that are kept: the best, and the one that is being written."""


def warn_of_little_space(checkpoint: Checkpoint, folder: Path, *, keep: int) -> None:
    """Warn if ``folder`` has not the bytes or the inodes for ``keep`` checkpoints like ``checkpoint``, and two more.

    A quota does not show here; a save that fails for one is reported, and training goes on.
    """
    count = keep + BESIDES
    size = sum(tensor.nbytes for named in checkpoint.tensors.values() for tensor in named.values())
    inodes = len(checkpoint.tensors) + 2  # the folder and the manifest
    disk = os.statvfs(folder)
    free = disk.f_bavail * disk.f_frsize
    if size * count > free:
        log.warning(
            "%s has %.1f GB free, and %d checkpoints of %.1f GB need %.1f GB: keep fewer, or take another folder",
            *(folder, free / 1e9, count, size / 1e9, size * count / 1e9),
        )
    if disk.f_files and inodes * count > disk.f_favail:  # 0: a file system that does not count them
        log.warning("%s has %d inodes free, and %d checkpoints need %d", folder, disk.f_favail, count, inodes * count)

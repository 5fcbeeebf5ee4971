"""Whether a checkpoint that Lightning wrote is intact: torch.load compares no checksums, and returns other numbers."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path

from torch.serialization import get_crc32_options

from slipway.base.errors import SessionError
from slipway.checkpoint.store import CheckpointStore, reading

FILE = "lightning.ckpt"
"""What Lightning writes into the folder of a checkpoint: a file, or a folder where its strategy shards the state."""
ZIP = b"PK\x03\x04"
"""Begins what torch.save writes; another CheckpointIO than Lightning's may write something else."""


def require_intact(store: CheckpointStore) -> None:
    """Make sure that the newest checkpoint in ``store``, if there is any, has the checksums of its ZIP archive.

    Raises:
        SessionError: if not; it names the checkpoint before it.
        CannotReadError: if it cannot be read.
    """
    with reading(store.path):
        folders = store.newest_first()
        damage = _damage(folders[0] / FILE) if folders and (folders[0] / FILE).is_file() else ""
    if damage:
        before = f"callback.ckpt_path is then {folders[1] / FILE}" if folders[1:] else "there is no older checkpoint"
        raise SessionError(
            "damaged-checkpoint",
            f"{folders[0] / FILE} is damaged: {damage}. Move {folders[0]} out of the run folder; {before}.",
        )


def _damage(path: Path) -> str:
    """Return what is wrong with a file of torch.save; "" if nothing is, or if it cannot be known."""
    with path.open("rb") as file:
        if file.read(len(ZIP)) != ZIP or not get_crc32_options():
            return ""
        try:
            member = zipfile.ZipFile(file).testzip()
        except Exception as error:  # zipfile raises many kinds for a damaged archive
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which is a seek to before the beginning
                raise
            return str(error) or type(error).__name__
    return f"the checksum of {member} does not match" if member else ""

"""Integrity check of Lightning's checkpoints: torch.load does not verify checksums and returns damaged values."""

from __future__ import annotations

import errno
import zipfile
from pathlib import Path

from torch.serialization import get_crc32_options

from slipway.base.errors import SessionError
from slipway.checkpoint.store import CheckpointStore, reading

FILE = "lightning.ckpt"
"""Name of Lightning's checkpoint in a checkpoint folder: a file, or a folder if the strategy shards the state."""
ZIP = b"PK\x03\x04"
"""First bytes of a file from torch.save; a CheckpointIO other than Lightning's may write another format."""


def require_intact(store: CheckpointStore) -> None:
    """Verify the ZIP checksums of the newest checkpoint in ``store``, if it has one.

    Raises:
        SessionError: if a checksum does not match; the message names the previous checkpoint.
        CannotReadError: if the checkpoint cannot be read.
    """
    with reading(store.path):
        folders = store.newest_first()
        damage = _damage(folders[0] / FILE) if folders and (folders[0] / FILE).is_file() else ""
    if damage:
        before = f"callback.ckpt_path is then {folders[1] / FILE}" if folders[1:] else "no older checkpoint exists"
        raise SessionError(
            "damaged-checkpoint",
            f"{folders[0] / FILE} is damaged: {damage}. Move {folders[0]} out of the run folder; {before}.",
        )


def _damage(path: Path) -> str:
    """Return the damage to a file of torch.save as text; "" if it is intact or cannot be verified."""
    with path.open("rb") as file:
        if file.read(len(ZIP)) != ZIP or not get_crc32_options():
            return ""
        try:
            member = zipfile.ZipFile(file).testzip()
        except Exception as error:  # zipfile raises many types for a damaged archive
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # EINVAL: seek to a negative offset
                raise
            return str(error) or type(error).__name__
    return f"the checksum of {member} does not match" if member else ""

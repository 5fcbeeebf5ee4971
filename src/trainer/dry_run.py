"""``--dry-run``: everything that a run does, in a temporary folder, so that nothing is left of it."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipway.communicator import Communicator
from slipway.communicator.sharing import on_root
from slipway.errors import FolderNotWritableError
from trainer.config import Launch
from trainer.runfolder import RunFolder

log = logging.getLogger(__name__)


@contextmanager
def temporary_folder(folder: RunFolder, launch: Launch, ranks: Communicator) -> Iterator[RunFolder]:
    """Yield a temporary run folder, which is removed at the end: within ``folder``, or beside it where it is missing.

    Ranks other than 0 get ``folder`` itself, which they do not touch. All ranks must call this.

    Raises:
        RefusedError: on every rank, if ``folder`` cannot be written, or holds a run that is not to be continued.
    """
    path = on_root(ranks, lambda: _make_folder(folder, launch))
    try:
        yield RunFolder(path) if path else folder
    finally:
        if path:
            shutil.rmtree(path, ignore_errors=True)
            if path.exists():
                log.warning("%s could not be removed", path)


def _make_folder(folder: RunFolder, launch: Launch) -> Path:
    try:
        folder.require_continuable(launch)
        if folder.path.is_dir():
            return Path(tempfile.mkdtemp(dir=folder.path, prefix=".dry-run."))
        parent = next(path for path in folder.path.absolute().parents if path.is_dir())
        return Path(tempfile.mkdtemp(dir=parent, prefix=f".{folder.path.name}.dry-run."))
    except OSError as error:
        raise FolderNotWritableError(folder=folder.path, reason=error.strerror) from error

"""``--dry-run``: everything that a run does, in a temporary folder, so that nothing is left of it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from slipway.communicator import Communicator
from slipway.communicator.sharing import on_root
from slipway.errors import FolderNotWritableError
from trainer.config import Settings
from trainer.runfolder import RunFolder


@contextmanager
def temporary_run(settings: Settings, ranks: Communicator) -> Iterator[Settings]:
    """Yield ``settings`` with a temporary run folder beside --output-dir, which is removed at the end.

    The run in --output-dir is continued there where --resume says so. All ranks must call this.

    Raises:
        RefusedError: on every rank, if a run in --output-dir would be refused.
    """
    output = Path(settings.launch.output_dir or "")
    # Ranks on other nodes write samples into the run folder, and cannot know this one.
    run = replace(settings.run, record_samples=False)
    launch = replace(settings.launch, resume=_resumed_from(settings))
    folder = on_root(ranks, lambda: _make_folder(output, settings))
    try:
        yield replace(settings, run=run, launch=replace(launch, output_dir=str(folder or output)))
    finally:
        if folder:
            shutil.rmtree(folder)


def _resumed_from(settings: Settings) -> str | None:
    """Return --resume, rewritten for the temporary folder."""
    launch = settings.launch
    if launch.resume != "auto":
        return launch.resume
    checkpoints = RunFolder(Path(launch.output_dir or "")).checkpoints
    return launch.output_dir if any(checkpoints.glob("step_*")) else None


def _make_folder(output: Path, settings: Settings) -> Path:
    RunFolder(output).require_continuable(settings.launch)
    parent = next(folder for folder in output.absolute().parents if folder.is_dir())
    try:
        if output.is_dir():
            tempfile.TemporaryFile(dir=output).close()
        return Path(tempfile.mkdtemp(dir=parent, prefix=f".{output.name}.dry-run."))
    except OSError as error:
        raise FolderNotWritableError(folder=output, reason=error.strerror) from error

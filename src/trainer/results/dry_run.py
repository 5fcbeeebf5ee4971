"""Temporary run folder for ``--dry-run``, which runs all parts of a run without keeping their files."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slipway.base.environment import Environment
from slipway.base.errors import is_retryable, warn
from slipway.dist.collectives import run_on_root
from slipway.dist.communicator import Communicator
from slipway.run.attempt import cannot_write
from slipway.run.lock import Lock
from slipway.run.run_folder import RunFolder
from slipway.run.status import read_status
from trainer.results.summary import SCHEDULE

log = logging.getLogger(__name__)


@contextmanager
def temporary_folder(
    folder: RunFolder, comm: Communicator, environment: Environment, *, may_continue: bool
) -> Iterator[RunFolder]:
    """Yield a temporary run folder and remove it at the end. It is in ``folder``, or next to it if that is missing.

    Ranks other than 0 get ``folder`` itself, which they do not touch. All ranks must call this. If a job script waits
    for a verdict, it is written to ``folder``.

    Raises:
        RunError: on every rank, if ``folder`` cannot be written, is in use, or holds a run and ``may_continue`` is
            false.
    """
    path: Path | None = None
    try:
        path = run_on_root(comm, lambda: _make_folder(folder, environment, may_continue=may_continue))
        yield RunFolder(path) if path else folder
        if path and (status := read_status(path)):
            folder.write_verdict_if_awaited(status, environment)
    except BaseException as error:
        if comm.world.is_root and not is_retryable(error):
            folder.refuse(error, environment)
        raise
    finally:
        if path:
            shutil.rmtree(path, ignore_errors=True)
            if path.exists():
                warn(log, "cannot-remove", "%s could not be removed", path)


def keep_schedule(temporary: RunFolder, folder: RunFolder) -> Path | None:
    """Move a split model's schedule figure to ``folder`` and return its path; None if there is no figure."""
    drawn, kept = temporary.figures / SCHEDULE, folder.figures / SCHEDULE
    if not drawn.is_file():
        return None
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(drawn, kept))
    except OSError as error:  # a figure must not fail a working run
        warn(log, "figure-not-drawn", "the schedule figure could not be kept: %s", error)
        return None


def _make_folder(folder: RunFolder, environment: Environment, *, may_continue: bool) -> Path:
    try:
        Lock(folder.path, job_id=environment.job_id, attempt=environment.attempt).require_free()
        if not may_continue:
            folder.require_no_run()
        if folder.path.is_dir():
            return Path(tempfile.mkdtemp(dir=folder.path, prefix=".dry-run."))
        parent = next(path for path in folder.path.absolute().parents if path.is_dir())
        return Path(tempfile.mkdtemp(dir=parent, prefix=f".{folder.path.name}.dry-run."))
    except OSError as error:
        raise cannot_write(folder.path, error) from error

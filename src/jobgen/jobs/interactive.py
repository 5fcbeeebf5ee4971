"""``jobgen shell``: run a shell or a command on a node, in the image or environment of the site's jobs."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Iterator, List, Mapping, Optional

from jobgen.base.errors import JobgenError, note
from jobgen.base.paths import data_folder
from jobgen.jobs.submit import check_command, environment_without_job, examine, tell
from jobgen.render.files import job_of
from jobgen.render.script import render_shell
from jobgen.schedulers import scheduler_of

SPEC = "shell"


def open_shell(site: str, settings: List[str], words: List[str], *, umask: int, dry_run: bool) -> int:
    """Run the command ``words``, or an interactive shell if it is empty, on a node of ``site``, with ``umask``.

    The session's script is in a temporary folder in the current one, which the nodes can read too. Without a library
    (SLIPWAY_LIB, or a clone), jobgen's own is copied there: the script looks for it beside itself.

    Returns:
        The exit code of the scheduler's command; under Slurm it is that of ``words``. For a dry run, the exit code of
        the first error that the real command would report now, or 0.

    Raises:
        JobgenError: if the session cannot start.
    """
    environment = environment_without_job(inside=True)  # inside a job, srun uses a node of that job
    job = job_of(SPEC, site, settings)
    session = examine(job, [], environment, site=site, dry_run=dry_run)
    scheduler = scheduler_of(job.scheduler)
    text = render_shell(job, words=words, given=session.given)
    if dry_run:
        command = scheduler.interactive(job, "SCRIPT")
        faults = (*session.faults, *check_command(command), *_of_folder(Path.cwd()))
        code = tell([session._replace(faults=faults)])
        sys.stdout.write(text)
        note(f"would run: {shlex.join(command)}")
        return code
    try:
        folder = tempfile.TemporaryDirectory(prefix=".jobgen-shell-", dir=Path.cwd())
    except OSError as error:
        raise _unwritable(Path.cwd(), error.errno) from error
    with folder:
        path = Path(folder.name, "shell")
        try:
            path.write_text(text, encoding="utf-8")
            if not session.library:
                _copy_library(path.with_name("lib"))
        except OSError as error:
            raise _unwritable(path.parent, error.errno) from error
        return run_at_terminal(scheduler.interactive(job, str(path)), session.environment, umask=umask)


def _copy_library(folder: Path) -> None:
    """Copy jobgen's script library to the new ``folder``, with modes that refuse_shared of lib/owners.bash accepts.

    Raises:
        OSError: if that is impossible.
    """
    folder.mkdir()
    for path in data_folder("jobscripts", "lib").iterdir():
        if path.is_file():
            copy = Path(shutil.copyfile(path, folder / path.name))
            copy.chmod(0o600)  # not group-writable, whatever ACL new files inherit
    folder.chmod(0o700)


def _of_folder(folder: Path) -> Iterator[JobgenError]:
    """Yield an error if permissions do not allow this user to write the script into ``folder``."""
    if not os.access(folder, os.W_OK | os.X_OK):
        yield _unwritable(folder, errno.EACCES)


def _unwritable(folder: Path, number: Optional[int]) -> JobgenError:
    return JobgenError(
        "cannot-write", f"cannot write {folder}: {os.strerror(number or 0)}: run this in a folder that you can write."
    )


def run_at_terminal(command: List[str], environment: Mapping[str, str], *, umask: int) -> int:
    """Run the command at this terminal and return its exit code, 128 + N after signal N.

    Raises:
        JobgenError: if the command is not on PATH.
    """
    for fault in check_command(command):
        raise fault
    note(shlex.join(command))
    process: Optional[subprocess.Popen[bytes]] = None
    terminated = False

    def terminate(*_: object) -> None:
        nonlocal terminated
        terminated = True
        if process:
            process.terminate()

    # The terminal sends these signals to the command too, and this process ends after the command.
    # A handler instead of SIG_IGN, which the command would inherit.
    handlers = {signal.SIGINT: lambda *_: None, signal.SIGHUP: lambda *_: None, signal.SIGTERM: terminate}
    before = {name: signal.signal(name, handler) for name, handler in handlers.items()}
    try:
        process = subprocess.Popen(command, env=environment, umask=umask)
        if terminated:  # the signal arrived before the process existed
            process.terminate()
        code = process.wait()
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    return code if code >= 0 else 128 - code

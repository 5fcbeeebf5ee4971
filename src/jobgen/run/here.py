"""Run a job's script on this machine, at a site without a scheduler: at the terminal, or in the background."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Tuple

from jobgen.base.errors import JobgenError
from jobgen.jobs.interactive import run_at_terminal
from jobgen.jobs.submit import FOLDER, Submission
from jobgen.render.files import write_script
from jobgen.resolve.settings import settings_of
from jobgen.schedulers import scheduler_of

REMOVED_AT_THE_END = 'trap : HUP INT TERM; bash "$0" "$@"; code=$?; rm -f -- "$0"; exit $code'
"""Runs a temporary script. Bash reads a script while it runs it, so it must stay until its end.

The traps keep a signal to the whole process group from ending this Bash before the script, which saves first.
"""


def run_here(submission: Submission, *, umask: int) -> int:
    """Run the script at this terminal and return its exit code. It is a temporary file: the run folder keeps a copy."""
    scheduler = scheduler_of(submission.job.scheduler)
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        path = Path(folder, submission.job.spec.name + scheduler.suffix)
        write_script(path, submission.script)
        command = scheduler.submission(str(path), submission.arguments)
        return run_at_terminal(command, submission.environment, umask=umask)


def start_here(submission: Submission) -> Tuple[Path, subprocess.Popen[bytes]]:
    """Start the job's script in the background; return its run folder and its process. FOLDER.log has the output.

    Raises:
        JobgenError: if the folder of run folders cannot be written.
    """
    values = {setting.name: setting.value for setting in settings_of(submission.job, submission.environment)}
    output, folder = Path(values["SLIPWAY_OUTPUT"] or "runs"), submission.environment.get("SLIPWAY_RUN_DIR")
    try:
        if not folder:
            output.mkdir(parents=True, exist_ok=True)
            stamp = time.strftime("%Y%m%d-%H%M%S")
            folder = tempfile.mkdtemp(prefix=f"{submission.job.spec.name}-{stamp}-", dir=output)
        path = Path(folder).absolute()
        log = path.with_name(f"{path.name}.log").open("ab")
        number, script = tempfile.mkstemp(prefix=FOLDER, suffix=".sh")
        os.close(number)
    except OSError as error:
        raise JobgenError("cannot-write", f"cannot write {folder or output}: {error.strerror}.") from error
    environment = {**submission.environment, "SLIPWAY_RUN_DIR": str(path)}
    write_script(Path(script), submission._replace(environment=environment).script)
    with log:
        process = subprocess.Popen(
            ["bash", "-c", REMOVED_AT_THE_END, script, *submission.arguments], env=environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    return path, process

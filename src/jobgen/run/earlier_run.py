"""An earlier run that is to continue: whether it is the user's own, and free."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

from jobgen.base.errors import JobgenError, note
from jobgen.follow.mine import Jobs
from jobgen.jobs.owners import shared
from jobgen.jobs.runs import Run
from jobgen.jobs.submit import environment_without_job
from slipway.base.contract import INPUT_CONFIG, JOB_SCRIPT, LIBRARY

ENDING = 60.0
"""Seconds that a job may need to end after its ranks."""
POLL = 2.0
"""Seconds between queries to the scheduler."""


def free_run(path: str) -> Run:
    """Return the run in the folder ``path``; if its ranks have ended, wait until its job has ended, too.

    Raises:
        JobgenError: if it is not a run folder, another user owns or can write it, it trains now, a job is in the queue
            to continue it, or its scheduler does not answer.
    """
    script = Path(path, JOB_SCRIPT)
    if not script.is_file():
        raise JobgenError(
            "bad-program", f"{path} is not a run folder that can be continued: it contains no {JOB_SCRIPT}."
        )
    if script.stat().st_uid != os.geteuid():
        raise JobgenError(
            "foreign-run",
            f"{path} is the run of another user: only its owner can continue it. Begin a run of your own.",
        )
    library = Path(path, LIBRARY)
    files = [Path(path), script, Path(path, INPUT_CONFIG), library, *sorted(library.glob("*"))]
    for error in shared(files, trusted=environment_without_job().get("SLIPWAY_TRUSTED_FOLDER", "")):
        raise error
    deadline = 0.0
    while True:
        run, jobs = Run(Path(path)), Jobs()
        key, last = jobs.of(run), run.job
        if jobs.silent and last and last.job and not jobs.answers_for(run):
            raise jobs.silent[0]
        if not (key or run.alive):
            return run
        by = f"job {key.job}" if key else "its ranks"
        is_ending = run.ended and (key is None or jobs[key].phase == "running")
        now = time.monotonic()
        if not is_ending or (deadline and now > deadline):
            raise JobgenError(
                "folder-in-use",
                f"{path} is in use by {by}: wait for its end, or end it: `jobgen cancel {shlex.quote(path)}`.",
            )
        if not deadline:
            deadline = now + ENDING
            note(f"{path} has stopped: waiting for the end of {by}")
        time.sleep(POLL)

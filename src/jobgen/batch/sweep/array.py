"""Script of a sweep's array job, with one task for each trial."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List

from jobgen.base.errors import JobgenError
from jobgen.base.job import Job
from jobgen.base.queue import job_id
from jobgen.base.shell import command, quote
from jobgen.render.script import directives_text, given_lines, owners
from jobgen.render.template import fill
from jobgen.schedulers import Array, scheduler_of


def array_script(
    job: Job, trials: Dict[str, List[str]], *, folder: Path, script: Path, at_once: int, trusted: str
) -> str:
    """Return the text of a script whose task n runs the n-th of ``trials``.

    A single trial becomes an ordinary job: PBS has no arrays with one task.

    Args:
        job: the job of each task.
        trials: each trial's run folder and arguments.
        folder: the sweep folder.
        script: the job script that each task runs.
        at_once: maximum concurrent tasks; 0: unlimited.
        trusted: the setting SLIPWAY_TRUSTED_FOLDER.

    Raises:
        JobgenError: if jobgen has no arrays for the scheduler, or a script cannot contain a value.
    """
    scheduler = scheduler_of(job.scheduler)
    array = scheduler.array(job, tasks=len(trials), at_once=at_once) if len(trials) > 1 else None
    if len(trials) > 1 and not array:
        raise JobgenError(
            "no-scheduler", f"a sweep is an array of jobs, but jobgen does not support arrays of {scheduler.name}."
        )
    array = array or Array(scheduler.directives(job), "0")
    rows = [
        f"    {index}) trial={quote(run)} arguments=({command(arguments)}) ;;"
        for index, (run, arguments) in enumerate(trials.items())
    ]
    values = {
        "directives": directives_text(array.directives, scheduler),
        "task": array.task,
        "trials": "\n".join(rows),
        "given": given_lines({"SLIPWAY_TRUSTED_FOLDER": trusted} if trusted else {}),
        "owners": owners(),
        "folder": quote(str(folder)),
        "submission": quote(str(script.parent)),
        "script": quote(str(script)),
    }
    return fill("array.bash", values) + "\n"


def jobs_of(number: str, trials: List[str]) -> Dict[str, str]:
    """Return the job of each of ``trials``, which were submitted together as the job ``number``."""
    found = job_id(number)
    if len(trials) == 1 or not found:
        return dict.fromkeys(trials, number)
    return {name: str(found._replace(task=str(index))) for index, name in enumerate(trials)}

"""The script of an array job, a task for each trial."""

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
    """Return the text of a script whose task n is the n-th of ``trials``.

    A single trial is an ordinary job: PBS has no array of one.

    Args:
        job: of each task.
        trials: the run folder of each, and its arguments.
        folder: of the sweep.
        script: the job script that each task runs.
        at_once: how many tasks may run together; 0: any number.
        trusted: the setting SLIPWAY_TRUSTED_FOLDER.

    Raises:
        JobgenError: if the scheduler has no arrays, or for values that no script can hold.
    """
    scheduler = scheduler_of(job.scheduler)
    array = scheduler.array(job, tasks=len(trials), at_once=at_once) if len(trials) > 1 else None
    if len(trials) > 1 and not array:
        raise JobgenError("no-scheduler", f"a sweep is an array of jobs, and jobgen knows none of {scheduler.name}.")
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
    """Return the job of each of ``trials``, which were submitted as ``number``, the scheduler's answer."""
    found = job_id(number)
    if len(trials) == 1 or not found:
        return dict.fromkeys(trials, number)
    return {name: str(found._replace(task=str(index))) for index, name in enumerate(trials)}

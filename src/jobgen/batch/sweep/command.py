"""``jobgen sweep``: print the cost of a sweep, then submit its missing trials as one array job."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Dict, List, Tuple

from jobgen.base.errors import JobgenError, say
from jobgen.base.job import Job
from jobgen.base.shell import require_one_line
from jobgen.batch.cost import confirm, cost_of
from jobgen.batch.sweep.array import array_script, jobs_of
from jobgen.batch.sweep.axes import drawn, grid
from jobgen.batch.sweep.record import Goal, Sweep, SweepFile, Trial
from jobgen.batch.sweep.request import Setup, SweepRequest, set_up
from jobgen.batch.sweep.results import lines_of, plan, results_of
from jobgen.jobs.owners import shared
from jobgen.jobs.submit import Submission, prepare, submit_for_job_number, tell
from jobgen.render.files import write_script
from jobgen.schedulers import queue_of

SUBMISSIONS = "submissions"
"""Folder of the submitted scripts, with one numbered folder for each submission."""


def sweep(request: SweepRequest) -> int:
    """Submit missing and failed trials, or those that continue to the next rung; return the exit code.

    Raises:
        JobgenError: if a check fails, or the scheduler rejects the trials.
    """
    setup = set_up(request)
    values = drawn(setup.axes, count=request.random, seed=request.seed) if request.random else grid(setup.axes)
    record, names = _record(setup, values)
    results = results_of(record)
    found = plan(record, [result for result in results if result.state.entry.name in names], keep=request.keep)
    for line in lines_of(record, results):
        say(line)
    if found.about:
        say(found.about)
    cost = cost_of([setup.job] * len(found.trials))
    say(f"{len(found.trials)} of {len(names)} trial(s) to submit: {cost}")
    if not found.trials:
        return 0
    _refuse_too_many(setup.job, len(found.trials))
    submission = _prepared(setup, found.trials[0])
    if request.dry_run:
        return tell([submission])
    confirm(cost.hours, limit=request.limit, yes=request.yes)
    with record.submitting():
        record.promote([trial.name for trial in found.trials], found.rung)
        _submit(setup, record, [record.entries[trial.name] for trial in found.trials], submission)
    return 0


def _record(setup: Setup, values: List[Dict[str, str]]) -> Tuple[Sweep, List[str]]:
    """Return the sweep, and the names of the requested trials.

    The sweep contains the trials in its file, followed by the new ones.

    Raises:
        JobgenError: if the folder contains a different sweep or other files, or a script cannot contain its path.
    """
    request = setup.request
    folder = Path(require_one_line(os.path.abspath(request.folder)))  # noqa: PTH100 -- keeps links
    goal: Goal = request.goal or ("min" if "loss" in request.metric else "max")
    content = SweepFile(
        scheduler=setup.job.site.scheduler,
        metric=request.metric,
        goal=goal,
        seeds=request.seeds,
        rungs=request.rungs,
        axes={axis.key: axis.text for axis in setup.axes},
        entries=[],
    )
    before = Sweep.open(folder, content)
    old = before.head
    differing = [
        f"{name} {then!r}, not {now!r}"
        for name, then, now in (
            ("scheduler", old.scheduler, content.scheduler),
            ("seeds", old.seeds, content.seeds),
            ("rungs", old.rungs, content.rungs),
            ("keys", [*old.axes], [*content.axes]),
        )
        if then != now
    ]
    if differing:
        raise JobgenError(
            "different-study",
            f"{request.folder} contains a different sweep ({'; '.join(differing)}): choose another --output.",
        )
    record = Sweep(folder, content, found=before.found)
    record.entries = dict(before.entries)
    known = {_identity(trial.values, trial.seed): trial.name for trial in before.entries.values()}
    names: List[str] = []
    for one in values:
        for seed in range(request.seeds):
            name = known.get(_identity(one, seed)) or f"{len(record.entries):03}"
            record.entries.setdefault(name, Trial(name=name, run=name, values=one, seed=seed, rung=0))
            names.append(name)
    if request.rungs and before.entries and {*names} != before.entries.keys():
        raise JobgenError(
            "different-study",
            f"{request.folder} contains a sweep over other values, but rungs compare all trials: use another --output.",
        )
    return record, names


def _identity(values: Dict[str, str], seed: int) -> Tuple[Tuple[Tuple[str, str], ...], int]:
    return tuple(sorted(values.items())), seed


def _refuse_too_many(job: Job, trials: int) -> None:
    """Raise a JobgenError if the trials exceed the scheduler's maximum array size."""
    queue = queue_of(job.site.scheduler)
    largest = queue.largest_array() if queue and trials > 1 else None
    if largest is not None and trials > largest:
        raise JobgenError(
            "too-many-trials",
            f"{trials} trials form one array, and {job.site.scheduler} here takes at most {largest} tasks per array: "
            "submit fewer first, then run the command again with more to add them.",
        )


def _prepared(setup: Setup, trial: Trial) -> Submission:
    """Check a trial and return its submission.

    Raises:
        JobgenError: if a check fails.
    """
    request = setup.request
    arguments = setup.arguments(trial)
    submission = prepare(
        request.spec, request.site, setup.settings, arguments, setup.environment, dry_run=request.dry_run
    )
    return submission._replace(arguments=[])  # the array script holds each trial's arguments


def _submit(setup: Setup, record: Sweep, trials: List[Trial], submission: Submission) -> None:
    """Submit trials and record their jobs.

    Raises:
        JobgenError: if the scheduler rejects them, or other users can write files that they run.
    """
    job, of_each = submission.job, {trial.run: setup.arguments(trial) for trial in trials}
    trusted = setup.environment.get("SLIPWAY_TRUSTED_FOLDER", "")
    for fault in shared([record.folder, record.folder / SUBMISSIONS], trusted=trusted):
        raise fault
    folder = _new_folder(record)
    script = folder / "job.sh"
    at_once = setup.request.at_once
    array = array_script(job, of_each, folder=record.folder, script=script, at_once=at_once, trusted=trusted)
    try:
        write_script(script, submission.script)
        write_script(folder / "array.sh", array)
    except JobgenError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # From here on the scheduler may have the job, which needs the folder: keep it on any exception.
    number = submit_for_job_number(submission, array)
    if not number:
        shutil.rmtree(folder, ignore_errors=True)
        raise JobgenError("submission-refused", "the scheduler rejected the trials, see above: run the command again.")
    say(f"job {number}: {len(trials)} trial(s)")
    record.submitted(jobs_of(number, [trial.name for trial in trials]))


def _new_folder(record: Sweep) -> Path:
    """Create a folder for the scripts of a submission.

    Raises:
        JobgenError: if it cannot be created.
    """
    above = record.folder / SUBMISSIONS
    number = 0
    while True:
        number += 1
        try:
            (above / str(number)).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise JobgenError("cannot-write", f"cannot write {above}: {error.strerror}.") from error
        return above / str(number)

"""``jobgen sweep``: print the cost of a sweep, then submit its missing trials as one array job."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from jobgen.base.errors import JobgenError, UsageError, say
from jobgen.base.job import Job
from jobgen.base.shell import one_line
from jobgen.batch.cost import ask, cost_of
from jobgen.batch.states import require_training
from jobgen.batch.sweep.array import array_script, jobs_of
from jobgen.batch.sweep.axes import Axis, divide, drawn, grid, reject_keys_given_twice
from jobgen.batch.sweep.record import Goal, Sweep, SweepFile, Trial
from jobgen.batch.sweep.results import lines_of, plan, results_of
from jobgen.jobs.owners import shared
from jobgen.jobs.submit import Submission, environment_without_job, prepare, submit_for_job_number, tell
from jobgen.jobs.trainer_flags import keys_of, load_schema
from jobgen.render.files import Script, job_of
from jobgen.schedulers import queue_of

SUBMISSIONS = "submissions"
"""Folder of the submitted scripts, with one numbered folder for each submission."""


class SweepRequest(NamedTuple):
    """Parsed command line of ``jobgen sweep``."""

    spec: str
    site: str
    settings: List[str]
    """Values of ``--set``: settings of the job, and axes."""
    arguments: List[str]
    """Arguments of the trainer or user script for all trials."""
    folder: Path
    random: int
    """Number of random trials; 0: the full grid."""
    seed: int
    """Seed of the random draw."""
    seeds: int
    """Trials with the same values, each with another seed."""
    seed_flag: str
    """The user script's flag for its seed."""
    at_once: int
    """Maximum concurrent tasks; 0: unlimited."""
    rungs: List[int]
    keep: int
    metric: str
    goal: Optional[Goal]
    limit: float
    """Core-hours, or GPU-hours for jobs with GPUs, above which jobgen requests confirmation."""
    yes: bool
    dry_run: bool


class Setup(NamedTuple):
    """A validated request."""

    request: SweepRequest
    job: Job
    settings: List[str]
    """Settings of the job."""
    axes: List[Axis]
    environment: Dict[str, str]
    seed_flag: str

    def arguments(self, trial: Trial) -> List[str]:
        """Return the arguments of ``trial`` for its rung."""
        found = [*self.request.arguments, *(axis.argument(trial.values[axis.key]) for axis in self.axes)]
        if self.request.seeds > 1:
            found.append(f"{self.seed_flag}={trial.seed}")
        if rungs := self.request.rungs:
            found += [f"--epochs={rungs[-1]}", f"--stop-epoch={rungs[trial.rung]}"]
        return found


def sweep(request: SweepRequest) -> int:
    """Submit missing and failed trials, or those that continue to the next rung; return the exit code.

    Raises:
        JobgenError: if a check fails, or the scheduler rejects the trials.
    """
    setup = _set_up(request)
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
    ask(cost.hours, limit=request.limit, yes=request.yes)
    with record.submitting():
        record.promote([trial.name for trial in found.trials], found.rung)
        _submit(setup, record, [record.entries[trial.name] for trial in found.trials], submission)
    return 0


def _set_up(request: SweepRequest) -> Setup:
    """Validate the request.

    Raises:
        JobgenError: if the request is invalid.
    """
    environment = environment_without_job()
    environment.pop("SLIPWAY_RUN_DIR", None)  # each trial has its own run folder
    script = bool(environment.get("SLIPWAY_SCRIPT"))
    schema = load_schema()
    settings, axes = divide(request.settings, schema, script=script)
    job = job_of(request.spec, request.site, settings)
    require_training(job, what="a sweep")
    if not axes and request.seeds == 1:
        raise UsageError(
            "nothing-to-vary",
            "nothing varies: add --set SECTION.KEY=A,B for values of a key, or --seeds N for repetitions.",
        )
    reject_keys_given_twice(axes, request.arguments, schema)
    _refuse_rungs(request, axes, script=script)
    return Setup(request, job, settings, axes, environment, _seed_flag(request, axes, script=script))


def _seed_flag(request: SweepRequest, axes: List[Axis], *, script: bool) -> str:
    """Return the flag that sets a trial's seed.

    Raises:
        UsageError: if the flag of a user script is not given, or the seed is also set otherwise.
    """
    if request.seed_flag and not script:
        raise UsageError("flag-conflict", "--seed-flag is for user scripts, but SLIPWAY_SCRIPT is not set.")
    flag = request.seed_flag or ("" if script else "--seed")
    if request.seeds == 1:
        return flag
    if not flag:
        raise UsageError(
            "missing-argument",
            "--seeds with a user script needs the script's seed flag: add it, such as --seed-flag --seed.",
        )
    taken = any(axis.key in {"train.seed", flag} for axis in axes)
    given = set() if script else keys_of(request.arguments, load_schema())
    if taken or "train.seed" in given or any(word.partition("=")[0] == flag for word in request.arguments):
        raise UsageError("flag-conflict", f"--seeds sets {flag}, which is also set elsewhere: remove one of them.")
    return flag


def _refuse_rungs(request: SweepRequest, axes: List[Axis], *, script: bool) -> None:
    """Reject invalid rungs, and settings that conflict with rungs.

    Raises:
        UsageError: if the rungs are invalid or conflict with a setting.
    """
    rungs = request.rungs
    if not rungs:
        return
    if script:
        raise UsageError(
            "flag-conflict",
            "--rungs needs the trainer, which stops a trial after an epoch and continues it from there.",
        )
    if rungs != sorted(set(rungs)) or len(rungs) == 1:
        raise UsageError(
            "bad-rungs", f"--rungs {','.join(map(str, rungs))}: give two or more epochs in ascending order."
        )
    if request.keep == 1:
        raise UsageError("bad-rungs", "--keep 1 would keep all trials: use 2 or more, because the best 1/N continue.")
    given = keys_of(request.arguments, load_schema()) | {axis.key for axis in axes}
    if both := sorted(given & {"train.epochs", "train.max_steps", "launch.stop_epoch"}):
        raise UsageError(
            "flag-conflict",
            f"{both[0]}: with --rungs, the last rung sets how long a trial trains: remove this setting.",
        )


def _record(setup: Setup, values: List[Dict[str, str]]) -> Tuple[Sweep, List[str]]:
    """Return the sweep, and the names of the requested trials.

    The sweep contains the trials in its file, followed by the new ones.

    Raises:
        JobgenError: if the folder contains a different sweep or other files, or a script cannot contain its path.
    """
    request = setup.request
    folder = Path(one_line(os.path.abspath(request.folder)))  # noqa: PTH100 -- keeps links
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
    text = array_script(job, of_each, folder=record.folder, script=script, at_once=at_once, trusted=trusted)
    array = Script(job, text)
    try:
        submission.script.write(script)
        array.write(folder / "array.sh")
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

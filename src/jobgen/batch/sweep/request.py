"""Request of ``jobgen sweep``: the parsed command line and its validation."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from jobgen.base.errors import UsageError
from jobgen.base.job import Job
from jobgen.batch.states import require_training
from jobgen.batch.sweep.axes import Axis, divide, reject_keys_given_twice
from jobgen.batch.sweep.record import Goal, Trial
from jobgen.jobs.submit import environment_without_job
from jobgen.jobs.trainer_flags import keys_of, load_schema
from jobgen.render.files import job_of


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


def set_up(request: SweepRequest) -> Setup:
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

"""``jobgen study``: print the cost of a grid of allocations, then submit its missing points."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict, List, Literal, NamedTuple

from jobgen.base.errors import JobgenError, UsageError, say
from jobgen.base.job import Job
from jobgen.batch.cost import confirm, cost_of
from jobgen.batch.states import require_training, states_of
from jobgen.batch.study.grid import Axes, Point, points_of, settings_of, weak_scaling_batch
from jobgen.batch.study.record import Study, StudyEntry, StudyFile, lines_of
from jobgen.jobs.precheck import find_config
from jobgen.jobs.submit import Submission, environment_without_job, prepare, submit_for_job_number, tell
from jobgen.jobs.trainer_flags import keys_of, load_schema
from jobgen.render.files import job_of
from slipway.base.bounded_read import read_head

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

UNLIMITED = 1_000_000


class StudyRequest(NamedTuple):
    """Parsed command line of ``jobgen study``."""

    spec: str
    site: str
    settings: List[str]
    arguments: List[str]
    """Trainer arguments for all points."""
    folder: Path
    axes: Axes
    scaling: Literal["strong", "weak"]
    batch: int
    """Samples per step on each rank of a weak-scaling study; 0: the configuration's value."""
    steps: int
    """Steps after which a point ends; 0: the configuration's value."""
    limit: float
    """Core-hours, or GPU-hours for jobs with GPUs, above which jobgen requests confirmation."""
    yes: bool
    dry_run: bool


def study(request: StudyRequest) -> int:
    """Submit the points that are missing or failed; return the exit code.

    Raises:
        JobgenError: if a point fails a check, or the scheduler rejects it.
    """
    base = job_of(request.spec, request.site, request.settings)
    require_training(base, what="a study")
    _refuse_contradictions(request, base)
    gpus = base.gpus_per_node > 0
    each = base.spec.devices_per_rank
    points, remarks = points_of(request.axes, max_ranks_per_node=base.site.gpus_per_node // each if gpus else UNLIMITED)
    for line in remarks:
        say(line)
    if not points:
        raise UsageError("nothing-to-vary", "the grid has no points.")
    record = _record(request, base, points)
    states = {state.entry.name: state for state in states_of(record)}
    wanted = [point for point in points if states[point.name].state in {"missing", "failed"}]
    jobs = [job_of(request.spec, request.site, _settings(request, base, point)) for point in wanted]
    for line in lines_of(list(states.values())):
        say(line)
    cost = cost_of(jobs)
    say(f"{len(wanted)} of {len(points)} point(s) to submit: {cost}")
    submissions = {point.name: _prepared(request, base, point, record) for point in wanted}
    if request.dry_run or not wanted:
        return tell([*submissions.values()])
    confirm(cost.hours, limit=request.limit, yes=request.yes)
    refused = []
    with record.submitting():
        for name, submission in submissions.items():
            if number := submit_for_job_number(submission, submission.script):
                say(f"{name}: job {number}")
                record.submitted({name: number})
            else:
                refused.append(name)
    if refused:
        raise JobgenError(
            "submission-refused",
            f"the scheduler rejected {', '.join(refused)}, see above: run the command again to submit the rest.",
        )
    return 0


def _refuse_contradictions(request: StudyRequest, base: Job) -> None:
    """Reject arguments that the study sets itself, and strong scaling with a batch size per rank.

    Raises:
        JobgenError: if there is such a conflict.
    """
    if request.batch and request.scaling == "strong":
        raise UsageError(
            "flag-conflict", "--batch needs --scaling weak: for strong scaling, set the global batch after --."
        )
    environment = environment_without_job()
    if environment.get("SLIPWAY_SCRIPT"):
        return
    taken = {"launch.threads": "--cpus", "data.workers": "--cpus"}
    if request.steps:
        taken["train.max_steps"] = "--steps"
    if request.scaling == "weak":
        taken.update(dict.fromkeys(("train.batch_size", "train.batch_size_per_rank"), "--scaling weak"))
    given = keys_of(request.arguments, load_schema())
    if both := sorted(given & taken.keys()):
        raise UsageError(
            "flag-conflict", f"{both[0]} is set both after -- and by {taken[both[0]]}: remove one of them."
        )
    if request.scaling == "weak" or "train.batch_size" in given:
        return
    each_rank = "train.batch_size_per_rank"
    if each_rank in given or _read_config(environment, base).get("train", {}).get("batch_size_per_rank"):
        raise UsageError(
            "flag-conflict",
            f"{each_rank} increases the global batch with the ranks, but strong scaling keeps it constant: use "
            "--scaling weak, or set train.batch_size.",
        )


def _record(request: StudyRequest, base: Job, points: List[Point]) -> Study:
    """Return the study with the points in its file and the new ones.

    Raises:
        JobgenError: if the folder contains a different study, or other files.
    """
    new = StudyFile(scaling=request.scaling, scheduler=base.site.scheduler, entries=[])
    record = Study.open(request.folder, new)
    old = record.head
    if (old.scaling, old.scheduler) != (new.scaling, new.scheduler):
        raise JobgenError(
            "different-study",
            f"{request.folder} contains a {old.scaling} study under {old.scheduler}: choose another --output.",
        )
    environment = environment_without_job()
    backend = environment.get("BACKEND") or base.spec.backend
    image = (environment.get("USE_CONTAINER") or str(int(base.site.container != "none"))) == "1"
    for point in points:
        taken = point.nodes * point.ranks_per_node * base.spec.devices_per_rank if base.gpus_per_node else 0
        entry = StudyEntry(
            name=point.name,
            run=point.name,
            nodes=point.nodes,
            ranks=point.ranks,
            cpus=point.cpus,
            backend=point.backend or backend,
            container=point.container == "1" if point.container else image,
            gpus=taken,
        )
        record.entries.setdefault(point.name, entry)
    return record


def _settings(request: StudyRequest, base: Job, point: Point) -> List[str]:
    varied = settings_of(point, gpus=base.gpus_per_node > 0, devices_per_rank=base.spec.devices_per_rank)
    return [*request.settings, *varied]


def _prepared(request: StudyRequest, base: Job, point: Point, record: Study) -> Submission:
    """Check a point and return its submission.

    Raises:
        JobgenError: if a check fails.
    """
    environment = environment_without_job()
    environment["SLIPWAY_RUN_DIR"] = os.path.abspath(record.run_folder(record.entries[point.name]))  # noqa: PTH100
    environment["SLIPWAY_RANKS_PER_NODE"] = str(point.ranks_per_node)  # even if the site's options request other GPUs
    if point.backend:
        environment["BACKEND"] = point.backend
    if point.container:
        environment["USE_CONTAINER"] = point.container
    arguments = [*request.arguments, *_arguments(request, base, point, environment)]
    settings = _settings(request, base, point)
    return prepare(request.spec, request.site, settings, arguments, environment, dry_run=request.dry_run)


def _arguments(request: StudyRequest, base: Job, point: Point, environment: Dict[str, str]) -> List[str]:
    """Return a point's trainer flags: threads and data workers from its cores, batch size and steps."""
    if environment.get("SLIPWAY_SCRIPT"):  # a user script reads OMP_NUM_THREADS
        return []
    found = ["--threads", str(point.cpus), "--workers", str(point.cpus)]
    if request.scaling == "weak":
        batch = request.batch or weak_scaling_batch(_read_config(environment, base), load_schema())
        found += ["--batch-size-per-rank", str(batch)]
    if request.steps:
        found += ["--max-steps", str(request.steps)]
    return found


def _read_config(environment: Dict[str, str], base: Job) -> Dict[str, Any]:
    path = environment.get("SLIPWAY_CONFIG") or base.spec.config
    try:
        found = tomllib.loads(read_head(find_config(Path(path)), limit=1 << 20).decode())
    except OSError as error:
        raise JobgenError("cannot-read", f"cannot read the configuration {path}: {error.strerror}.") from error
    except ValueError as error:
        raise JobgenError("bad-toml", f"the configuration {path} is not valid TOML: {error}.") from error
    if not isinstance(found.get("train", {}), dict):
        raise JobgenError("bad-value", f"the configuration {path}: train is not a table.")
    return found

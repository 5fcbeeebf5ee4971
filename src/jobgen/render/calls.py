"""Calls of library functions in a script, in order, each with its comment."""

from __future__ import annotations

from typing import List, Sequence, Tuple

from jobgen.base.job import BUILDS, Job
from jobgen.base.shell import COLUMNS, Expansion, Word, command, quote, wrapped
from jobgen.launchers import launcher_of
from jobgen.render.launch import backends
from jobgen.runtimes import container_words, gpu_options
from jobgen.schedulers import Scheduler, scheduler_of

Call = Tuple[str, str]
"""A line that calls a library function, and its comment."""


def training_calls(job: Job, scheduler: Scheduler) -> List[Call]:
    """Return the calls of a script that trains, between the settings and the launch."""
    site, spec = job.site, job.spec
    arguments = '--selftest "$@"' if spec.task == "selftest" else '"$@"'
    rows: List[Call] = []
    if scheduler.one_machine:
        rows.append(("choose_container", "sets USE_CONTAINER if it is empty"))
    rows.append(("check_settings", "checks each setting; makes paths absolute"))
    rows.append((command(["check_backend", *backends(job)]), "values of BACKEND for this script"))
    rows += _load_modules(job)
    rows.append(("check_inputs", "-> image, venv, data; nothing is written before this"))
    rows.append(("find_allocation", _allocation(job, scheduler)))
    mode = " 750" if site.group_readable else ""
    rows.append((f"open_run_folder{mode}", "-> RUN_DIR, attempt; makes RUN_DIR/logs/ATTEMPT"))
    if spec.client:
        rows.append(("request_nodes", "-> nodes, head_node, world_size: the nodes that Dask got"))
    rows.append(("make_scratch", "-> scratch: a new private folder on each local disk"))
    rows.append(("stage_to_local_disk", "-> image, data: copies on local disks if SLIPWAY_STAGE=1"))
    rows.append(("build_local_venv", "-> venv: on each local disk if SLIPWAY_VENV=local"))
    rows += _container(job, "RUN_DIR")
    if scheduler.one_machine:
        rows.append(("count_ranks", "-> ranks_per_node, world_size: one per GPU, or two on CPUs"))
    if not scheduler.takes_arguments:
        rows += [("read_arguments", "-> arguments, from SLIPWAY_ARGS"), _ARGUMENTS]
    rows.append(("export_rank_environment", "exports thread counts, cache folders and the plan"))
    rows.append((f"choose_program {arguments}", "-> program: the trainer or your script"))
    if spec.mpi:
        probe = launcher_of(job.launcher).mpi_probe
        rows.append((command(["check_mpi", *probe]), "exports the launcher's MPI, which the preflight compares"))
    elif spec.backend != "single":
        rows.append(("choose_rendezvous", "exports MASTER_ADDR; each launch exports MASTER_PORT"))
    rows.append(("preflight", "checks every node before the launch"))
    rows.append(('save_job_script "$@"', "writes RUN_DIR/job.sh, which resumes the run"))
    return rows


def _allocation(job: Job, scheduler: Scheduler) -> str:
    """Return the comment on find_allocation: the variables that it sets."""
    if job.spec.client:
        return "-> cpus, ranks_per_node ... of a node"
    if scheduler.one_machine:
        return "-> nodes, head_node, cpus ..."
    return "-> nodes, head_node, cpus, ranks_per_node, world_size ..."


_ARGUMENTS: Call = ('[ ${#arguments[@]} -eq 0 ] || set -- "${arguments[@]}"', "")


def final_calls(job: Job) -> List[Call]:
    """Return the calls after the definition of the launch: run it, and end the job."""
    what = {
        "requeue": "exits by the verdict; requeues after a time limit",
        "chain": "exits by the verdict; submits the next job after a time limit",
        "restart": "exits by the verdict; requests nodes again after a time limit",
        "none": "exits by the verdict",
    }[job.resume]
    launch = ('run_launch "launch_$BACKEND"', "runs the launch; forwards the scheduler's signals")
    if not job.spec.client:
        why = "runs the launch; again if ranks or nodes died"
        launch = ('run_attempts "launch_$BACKEND"', why)
    return [launch, (f"finish {job.resume}", what)]


def build_calls(job: Job) -> List[Call]:
    """Return the calls of a script that builds an image or a virtual environment."""
    rows: List[Call] = [("check_settings", "checks each setting; makes paths absolute")]
    rows += _load_modules(job)
    rows.append((f"check_clone {BUILDS[job.spec.task]}", "the build needs a clone of the project"))
    rows.append(("make_build_scratch", "caches and temporary files, removed at the end"))
    rows.append((f"build_{job.spec.task}", "tests the result before it gets its final name"))
    return rows


def shell_calls(job: Job, words: Sequence[str]) -> List[Call]:
    """Return the calls of a session that runs the command ``words``, or an interactive shell if there are none."""
    rows: List[Call] = []
    alone = scheduler_of(job.scheduler).one_machine
    if alone:
        rows.append(("choose_container", "sets USE_CONTAINER if it is empty"))
    rows.append(("check_settings", "checks each setting; makes paths absolute"))
    rows += _load_modules(job)
    rows += [
        ("check_inputs", "-> image, venv, data; nothing is written before this"),
        ("find_allocation", "-> cpus, gpus_per_node, head_node"),
        ("open_output_folder", "folder of the runs, which the container sees"),
        ("make_scratch", "-> scratch: a new private folder on the local disk"),
        ("copy_library_to_scratch", "-> lib: a copy on the local disk"),
        ("stage_to_local_disk", "-> image, data: copies on local disks if SLIPWAY_STAGE=1"),
        ("build_local_venv", "-> venv: on the local disk if SLIPWAY_VENV=local"),
        *_container(job, "SLIPWAY_OUTPUT"),
        *([("plan_ranks", "-> cpus_per_rank, for one process")] if alone else []),
        ("export_job_environment", "exports threads, cache folders and DATA"),
        (command(["run_command", *words]), "the command" if words else "an interactive shell"),
    ]
    return rows


def _container(job: Job, runs: str) -> List[Call]:
    """Return the lines that set ``bind_paths``, one path per line, and ``container``, the runtime's command."""
    variables = ("PWD", runs, "SLIPWAY_LOCAL_DISK")
    paths: List[Word] = [*(Expansion(f'"${name}"') for name in variables), *job.site.binds]
    container = f"container=({command(container_words(job))})"
    if len(container) > COLUMNS:
        words = wrapped([container_words(job)], indent=4).replace(" \\\n", "\n")
        container = f"container=(\n{words}\n)"
    drop = f"; no {command(gpu_options(job))} on CPUs" if gpu_options(job) else ""
    return [
        ("bind_paths=(", "host paths in the container, besides home and the runtime's own"),
        *((f"    {quote(path)}", "") for path in paths),
        (")", ""),
        ("set_binds", "-> binds: options for these paths, the data, and the configuration or the script's folder"),
        (container, ""),
        (command(["trim_container_command", *gpu_options(job)]), f"empties container with USE_CONTAINER=0{drop}"),
    ]


def _load_modules(job: Job) -> List[Call]:
    if not job.site.modules:
        return []
    return [(command(["load_modules", str(int(job.site.purge_modules)), *job.site.modules]), "1: purge first")]

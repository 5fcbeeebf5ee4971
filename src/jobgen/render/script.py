"""Assemble the text of a script from a Job. No other module assembles text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from types import MappingProxyType
from typing import Dict, List, Mapping, Sequence, Tuple

from jobgen.base.errors import JobgenError
from jobgen.base.job import BUILDS, Job
from jobgen.base.paths import data_folder
from jobgen.base.shell import COLUMNS, Expansion, Word, command, default, one_line, quote, wrapped
from jobgen.launchers import launcher_of
from jobgen.render import header
from jobgen.render.launch import backends, bound_backends, launches, starts_torchrun
from jobgen.render.standalone import with_library
from jobgen.render.template import fill
from jobgen.resolve.settings import Default, defaults_of
from jobgen.runtimes import container_of, container_words, gpu_options
from jobgen.schedulers import Directive, Scheduler, scheduler_of
from slipway.base.contract import SETTINGS

BESIDE_SETTINGS = 45
BESIDE_CALLS = 33
"""Columns at which comments start, after shorter lines."""
UNSET = """\
# Ignore inherited variables that have the names of this script's own.
unset -v run_dir restarted interactive slurm_record kept_folder kept_settings private_group \\
    sigterm_at bound_backends numa_binding site_downloads container_options"""
SIGNALS = """\
# Until catch_signals, SIGUSR1, SIGINT and SIGHUP end the script. A SIGTERM is only recorded: a
# requeued job can receive the one sent to its previous run. The time and the SIGTERM are passed to
# RUN_DIR/job.sh if that replaces this script.
end_early() { # CODE SLUG SENTENCE
    echo "$script_name: error[$2]: $3 before training began" >&2 || :
    exit "$1"
}
trap 'end_early 78 time-too-short "the time limit was reached"' USR1
trap 'end_early 75 stopped-early "ended by a signal"' INT HUP
sigterm_at=''
[[ ${slipway_began:-} != "$$ "* ]] || read -r _ SECONDS sigterm_at <<<"$slipway_began"
unset -v slipway_began
trap 'sigterm_at=0' TERM # not $SECONDS: Bash runs a trap after the current command"""
"""Signal handling at the start of scripts that train."""
NOTHING: Mapping[str, str] = MappingProxyType({})
Call = Tuple[str, str]
"""A line that calls a library function, and its comment."""


def render(job: Job, *, path: str, given: Mapping[str, str] = NOTHING, standalone: bool = False) -> str:
    """Return the script for the file ``path``; the same job always gives the same text.

    ``given`` are the settings of one submission, which win over the defaults of the job.

    Raises:
        JobgenError: for values that no script can hold.
    """
    if job.spec.task == "shell":
        where = shlex.join(job.origin[3:5])
        raise JobgenError(
            "not-a-job", f"{job.spec.name} is not a job: `jobgen shell {where}` opens it; --dry-run shows its script."
        )
    scheduler = scheduler_of(job.scheduler)
    values = _values(job, scheduler, path=path, given=given)
    building = job.spec.task in BUILDS
    values["launch"] = "" if building else launches(job)
    values["signals"] = "" if building else SIGNALS
    values["header"] = header.contract(job, scheduler, values)
    values["head"] = fill("head.bash", values)
    if building:
        values["calls"] = _commented(_build_calls(job), column=BESIDE_CALLS)
        text = fill("building.bash", values)
    else:
        values["calls"] = _commented(_calls(job, scheduler), column=BESIDE_CALLS)
        values["finish"] = _commented(_finish(job), column=BESIDE_CALLS)
        text = fill("training.bash", values)
    return (with_library(text) if standalone else text) + "\n"


def render_shell(job: Job, *, words: Sequence[str], given: Mapping[str, str], standalone: bool) -> str:
    """Return the script of a session that runs the command ``words``, or an interactive shell if there are none.

    Raises:
        JobgenError: for values that no script can hold.
    """
    values = _values(job, scheduler_of(job.scheduler), path="shell", given=given)
    values["calls"] = _commented(_shell_calls(job, words), column=BESIDE_CALLS)
    text = fill("shell.bash", values)
    return (with_library(text) if standalone else text) + "\n"


def _values(job: Job, scheduler: Scheduler, *, path: str, given: Mapping[str, str]) -> Dict[str, str]:
    """Return the values of the placeholders of all templates."""
    values = {
        "about": header.about(job),
        "job": one_line(job.spec.name),
        "path": one_line(path),
        "script": re.sub(r"[^\w.-]", "_", Path(path).name, flags=re.ASCII),
        "scheduler": scheduler.name,
        "submit": scheduler.submit,
        "origin": header.origin(job),
        "given": given_lines(given),
        "owners": owners(),
        "unset": UNSET,
        "output": _commented(_output(job)),
        "site": one_line(job.site.name),
        "directives": directives_text(scheduler.directives(job), scheduler),
        "settings": _commented(_settings(job)),
        "example": f"SLIPWAY_CONFIG=mine.toml {scheduler.submit} {path}",
        "site_lines": _site_lines(job, scheduler),
        "launcher_source": _launcher_sources(job),
        "identity": scheduler.identity,
        "restarted": scheduler.restarted,
        "script_path": scheduler.script_path,
    }
    values["library"] = fill("library.bash", values)
    return values


def owners() -> str:
    """Return the library functions that check whether a script may source the library."""
    text = data_folder("jobscripts", "lib", "owners.bash").read_text(encoding="utf-8")
    return text[text.index("\n# refuse_shared") + 1 :].rstrip()


def _calls(job: Job, scheduler: Scheduler) -> List[Call]:
    """Return the calls between the settings and the launch."""
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


def _finish(job: Job) -> List[Call]:
    what = {
        "requeue": "exits by the verdict; requeues after a time limit",
        "chain": "exits by the verdict; submits the next job after a time limit",
        "restart": "exits by the verdict; requests nodes again after a time limit",
        "none": "exits by the verdict",
    }[job.resume]
    launch = ('run_step "launch_$BACKEND"', "runs the launch; forwards the scheduler's signals")
    if not job.spec.client:
        why = "runs the launch; again if ranks or nodes died"
        launch = ('run_attempts "launch_$BACKEND"', why)
    return [launch, (f"finish {job.resume}", what)]


def _build_calls(job: Job) -> List[Call]:
    rows: List[Call] = [("check_settings", "checks each setting; makes paths absolute")]
    rows += _load_modules(job)
    rows.append((f"check_clone {BUILDS[job.spec.task]}", "the build needs a clone of the project"))
    rows.append(("make_build_scratch", "caches and temporary files, removed at the end"))
    rows.append((f"build_{job.spec.task}", "tests the result before it gets its final name"))
    return rows


def _shell_calls(job: Job, words: Sequence[str]) -> List[Call]:
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
        ("set_binds", "-> binds: options for these paths, the data, and the folder of the script or configuration"),
        (container, ""),
        (command(["trim_container_command", *gpu_options(job)]), f"empties container with USE_CONTAINER=0{drop}"),
    ]


def _load_modules(job: Job) -> List[Call]:
    if not job.site.modules:
        return []
    return [(command(["load_modules", str(int(job.site.purge_modules)), *job.site.modules]), "1: purge first")]


def _output(job: Job) -> List[Tuple[str, str]]:
    """Return the line that sets SLIPWAY_OUTPUT, which the run folder depends on."""
    value = Default(job.site.output, "output").in_bash()
    return [(f': "${{SLIPWAY_OUTPUT:={value}}}"', "folder of the run folders, shared by all nodes")]


def _settings(job: Job) -> List[Tuple[str, str]]:
    """Return the lines ``: "${NAME:=default}"`` with their comments, except SLIPWAY_OUTPUT."""
    comments = {name: setting.comment for name, setting in SETTINGS.items()}
    comments["BACKEND"] = " or ".join(backends(job))
    if job.spec.task not in BUILDS:
        comments["SLIPWAY_IMAGE"] = f"container image; {container_of(job.site.container).image_source}"
    rows = [
        (f': "${{{name}:={value.in_bash()}}}"', comments[name])
        for name, value in defaults_of(job).items()
        if name != "SLIPWAY_OUTPUT"
    ]
    if job.spec.task == "selftest":
        rows.append(("SLIPWAY_SCRIPT=", "the trainer runs its self-test"))
    if job.spec.task == "shell":
        rows.append(("BACKEND=single SLIPWAY_RANKS_PER_NODE='' SLIPWAY_SCRIPT=''", "one user process"))
        rows.append(("unset -v SLIPWAY_CONFIG", ""))
    return rows


def given_lines(given: Mapping[str, str]) -> str:
    """Return the lines that set the settings of a submission, for sites that do not pass on its environment."""
    if not given:
        return ""
    return fill("given.bash", {"given": "\n".join(command(["given", *pair]) for pair in given.items())})


def _site_lines(job: Job, scheduler: Scheduler) -> str:
    """Return the variables that the library reads, and the site's exports."""
    lines: List[Tuple[str, str]] = []
    if job.spec.task not in BUILDS:
        alone = scheduler.one_machine or job.spec.task == "shell"
        what = "processes start on this machine" if alone else "starts a process on each node"
        lines.append((f"launcher={'local' if alone else job.steps}", what))
        for name in dict.fromkeys((job.steps, job.launcher)):
            lines += launcher_of(name).site_lines(job, scheduler)
        lines += scheduler.site_lines(job)
        if bound := bound_backends(job):
            lines.append((f"bound_backends=({command(bound)})", "backends whose ranks see only their own GPUs"))
        if job.site.numa_binding and job.spec.task != "shell" and starts_torchrun(job):
            lines.append(
                (f"numa_binding={job.site.numa_binding}", "bind ranks to the cores next to their GPU (torchrun)")
            )
        if job.site.downloads:
            lines.append(("site_downloads=1", "nodes may download packages (SLIPWAY_VENV=local)"))
        runtime = container_of(job.site.container).name
        lines.append((f"container_runtime={runtime}", "checked before the launch if USE_CONTAINER=1"))
        if job.site.container_options:
            lines.append(
                (f"container_options=({command(job.site.container_options)})", "options of the container runtime")
            )
    return "\n".join(filter(None, [_commented(lines), _path(job), _exports(job), scheduler.site_text(job)]))


def _path(job: Job) -> str:
    if not job.site.path:
        return ""
    return f'export PATH={":".join(quote(folder) for folder in job.site.path)}:"$PATH"'


def _exports(job: Job) -> str:
    for name in job.site.env:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, flags=re.ASCII):
            raise JobgenError("bad-site", f"site {job.site.name}: {name!r} in [env] is not a variable name.")
    lines = [f'export {name}="${{{name}:-{default(value)}}}"' for name, value in job.site.env.items()]
    return "\n".join(["# Exported if they are not set at submission.", *lines] if lines else [])


def _launcher_sources(job: Job) -> str:
    if job.spec.task in BUILDS:
        return ""
    files = dict.fromkeys(launcher_of(name).library for name in (job.launcher, job.steps))
    names = [*filter(None, files), container_of(job.site.container).library]
    return "\n".join(f'source "$lib/{name}.bash"' for name in names)


def directives_text(rows: List[Directive], scheduler: Scheduler) -> str:
    """Return the directives' lines, each with its reason."""
    if scheduler.comments == "beside":
        return _commented(rows)
    return "\n".join(f"# {why}\n{line}" for line, why in rows)


def _commented(lines: List[Tuple[str, str]], *, column: int = BESIDE_SETTINGS) -> str:
    """Return lines with comments after them, or above if that is too wide."""
    texts: List[str] = []
    for line, why in lines:
        beside = f"{line:<{column}} # {why}" if why else line
        texts.append(beside if len(beside) <= COLUMNS else f"# {why}\n{line}")
    return "\n".join(texts)

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
from jobgen.base.shell import COLUMNS, command, default, quote, require_one_line
from jobgen.launchers import launcher_of
from jobgen.render import header
from jobgen.render.calls import build_calls, final_calls, shell_calls, training_calls
from jobgen.render.launch import backends, bound_backends, launches, starts_torchrun
from jobgen.render.standalone import with_library
from jobgen.render.template import fill
from jobgen.resolve.settings import Default, defaults_of
from jobgen.runtimes import container_of
from jobgen.schedulers import Directive, Scheduler, scheduler_of
from slipway.base.contract import SETTINGS

BESIDE_SETTINGS = 45
BESIDE_CALLS = 33
"""Columns at which comments start, after shorter lines."""
NOTHING: Mapping[str, str] = MappingProxyType({})


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
    values["signals"] = "" if building else fill("signals.bash", values)
    values["header"] = header.entries(job, scheduler, values)
    values["head"] = fill("head.bash", values)
    if building:
        values["calls"] = _commented(build_calls(job), column=BESIDE_CALLS)
        text = fill("building.bash", values)
    else:
        values["calls"] = _commented(training_calls(job, scheduler), column=BESIDE_CALLS)
        values["finish"] = _commented(final_calls(job), column=BESIDE_CALLS)
        text = fill("training.bash", values)
    return (with_library(text) if standalone else text) + "\n"


def render_shell(job: Job, *, words: Sequence[str], given: Mapping[str, str]) -> str:
    """Return the script of a session that runs the command ``words``, or an interactive shell if there are none.

    Raises:
        JobgenError: for values that no script can hold.
    """
    values = _values(job, scheduler_of(job.scheduler), path="shell", given=given)
    values["calls"] = _commented(shell_calls(job, words), column=BESIDE_CALLS)
    return fill("shell.bash", values) + "\n"


def _values(job: Job, scheduler: Scheduler, *, path: str, given: Mapping[str, str]) -> Dict[str, str]:
    """Return the values of the placeholders of all templates."""
    values = {
        "about": header.about(job),
        "job": require_one_line(job.spec.name),
        "path": require_one_line(path),
        "script": re.sub(r"[^\w.-]", "_", Path(path).name, flags=re.ASCII),
        "scheduler": scheduler.name,
        "submit": scheduler.submit,
        "origin": header.origin(job),
        "given": given_lines(given),
        "owners": owners(),
        "unset": fill("unset.bash", {}),
        "output": _commented(_output(job)),
        "site": require_one_line(job.site.name),
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

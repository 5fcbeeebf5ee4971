"""From a Job to the text of its script: the only place where text is assembled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List, Tuple

from jobgen.builds import SETTINGS, SKELETONS, usage
from jobgen.containers import gpu_option, wrapper
from jobgen.errors import JobgenError
from jobgen.launch import layers, meeting, per_node
from jobgen.model import Job
from jobgen.schedulers import Scheduler, Setting, scheduler_of
from jobgen.skeletons import fill
from jobgen.words import Word, default, one_line, quote

TASKS = {"train": "", "check": " --self-test"}
"""What the trainer is told of the task."""
COMMENTS_FROM = 45
"""Column from which comments stand, where what they are about is shorter."""


def render(job: Job, *, path: str) -> str:
    """Return the script that will be committed as ``path``: the same text for the same job.

    Raises:
        JobgenError: for values that no script can hold.
    """
    scheduler, kind = scheduler_of(job), meeting(job)
    settings = _settings(job, scheduler)
    slots = {
        "about": one_line(job.spec.about).replace("{launcher}", job.launcher),
        "usage": usage(scheduler.usage(path)) if job.spec.task in SKELETONS else scheduler.usage(path),
        "origin": _words([*job.origin]),
        "name": Path(path).name,
        "job": job.spec.name,
        "directives": (_commented if scheduler.remarks == "behind" else _headed)(scheduler.directives(job)),
        "number": scheduler.number,
        "settings": _commented([(f': "${{{name}:={value}}}"', why) for name, value, why in settings]),
        "names": _given(job, settings),
        "clean_seconds": "60" if job.site.venv == "local" else "20",  # an environment is thousands of files
        "cpus": str(job.cpus_per_node),
        "mpi": "srun --mpi=list" if job.launcher == "srun" else "mpirun --version",
        "save_seconds": str(job.spec.save_seconds),
        "threads": scheduler.threads(job),
        "modules": _modules(job),
        "env": _env(job),
        "backend": job.spec.backend,
        "task": TASKS.get(job.spec.task, ""),
        "per_node": _words(per_node(job)),
        "binds": "".join(f' "{_path(path)}"' for path in job.site.binds),
        "gpus": gpu_option(job),
        "wrapper": _words(wrapper()),
        "words": _continued([_words(layer) for layer in layers(job)]),
        "continued": scheduler.continued(),
    }
    folder = scheduler.templates
    for slot, name in {
        "choice": f"{folder}/choice",
        "begin": f"{folder}/begin",
        "where": f"{folder}/where",
        "venv": "venv_local" if job.site.venv == "local" else "",
        "stage": "stage",
        "launcher": f"{job.launcher}/told",
        "head": "head",
        "meeting": f"{kind}/meeting",
        "traps": f"{folder}/traps",
        "launch": "launch",
        "attempts": f"{kind}/attempts",
        "again": f"{folder}/{job.site.resume}",
    }.items():
        slots[slot] = fill(name, slots)
    return fill(SKELETONS.get(job.spec.task, "job"), slots) + "\n"


def _words(words: List[Word]) -> str:
    return " ".join(quote(word) for word in words)


def _continued(lines: List[str]) -> str:
    """Return one command over several lines, as it stands in a function."""
    return " \\\n        ".join(lines)


def _commented(lines: List[Tuple[str, str]]) -> str:
    return "\n".join(f"{line:<{COMMENTS_FROM}} # {why}" if why else line for line, why in lines)


def _headed(lines: List[Tuple[str, str]]) -> str:
    """Return lines with their reasons above."""
    return "\n".join(f"# {why}\n{line}" for line, why in lines)


def _settings(job: Job, scheduler: Scheduler) -> List[Setting]:
    spec, site = job.spec, job.site
    disk: Setting = ("LOCAL_DISK", _path(site.local_disk), "of each node: caches, and copies if STAGE=1")
    if spec.task in SETTINGS:
        return [*SETTINGS[spec.task], (*disk[:2], "of the node: caches and temporary files")]
    return [
        *scheduler.settings(job),
        ("IMAGE", "slipway.sif", "image_build.job makes it"),
        ("VENV", ".venv", "venv_build.job makes it, or on a laptop `make setup`"),
        ("CONFIG", default(spec.config), "what is trained, and how"),
        ("TRAIN_SCRIPT", "", "run this Python script instead of the trainer"),
        ("DATA", "", "the trainer's --data-dir; none for sets that it brings along"),
        ("OUTPUT", "runs", "run folders are made here; on a disk that all nodes share"),
        ("DEVICE", spec.device, "cuda, cpu, or auto: a GPU where there is one"),
        disk,
        ("STAGE", "0", "1: copy image and data to LOCAL_DISK first"),
    ]


def _given(job: Job, settings: List[Setting]) -> str:
    """Return the names of what a run is continued with.

    All settings but a folder that is gone with the job; and what build/setup is told where it makes an environment on
    each node.
    """
    gone = {"LOCAL_DISK"} if job.site.local_disk.startswith("$") else set()
    of_setup = ["VARIANT", "WHEELHOUSE", "PYTHON"] if job.site.venv == "local" else []
    return " ".join([name for name, _, _ in settings if name not in gone] + of_setup)


def _path(text: str) -> str:
    """Return a site's path as a default; where it starts with a variable, that stays one."""
    found = re.match(r"\$(\w+)(.*)", text, flags=re.DOTALL)
    return f"${{{found[1]}:?is not set here}}{default(found[2])}" if found else default(text)


def _env(job: Job) -> str:
    for name in job.site.env:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, flags=re.ASCII):
            raise JobgenError(f"site {job.site.name}: {name!r} in [env] is no name of a variable.")
    return "\n".join(f'export {name}="${{{name}:-{default(value)}}}"' for name, value in job.site.env.items())


def _modules(job: Job) -> str:
    if not job.site.modules:
        return ""
    # `module` is a shell function that reads unset variables
    return f"set +u\nmodule purge\nmodule load {_words([*job.site.modules])}\nset -u"

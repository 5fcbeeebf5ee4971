"""From a Job to the text of its script: the only place where text is assembled."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, Tuple

from jobgen.builds import SETTINGS, SKELETONS, usage
from jobgen.containers import gpu_option, wrapper
from jobgen.errors import JobgenError
from jobgen.launch import layers, per_node
from jobgen.model import Job
from jobgen.schedulers import Scheduler, Setting, scheduler_of
from jobgen.words import Word, default, one_line, quote

TEMPLATES = Path(__file__).parent / "templates"
SLOT = re.compile(r"@\{(\w+)\}")
TASKS = {"train": "", "check": " --self-test"}
"""What the trainer is told of the task."""
COMMENTS_FROM = 45
"""Column from which comments stand, where what they are about is shorter."""


def render(job: Job, *, path: str) -> str:
    """Return the script that will be committed as ``path``: the same text for the same job.

    Raises:
        JobgenError: for values that no script can hold.
    """
    scheduler = scheduler_of(job)
    template, launch = layers(job)
    slots = {
        "about": one_line(job.spec.about),
        "usage": usage(scheduler.usage(path)) if job.spec.task in SKELETONS else scheduler.usage(path),
        "origin": _words([*job.origin]),
        "name": Path(path).name,
        "job": job.spec.name,
        "directives": _commented(scheduler.directives(job)),
        "settings": _settings(job, scheduler),
        "threads": scheduler.threads(job),
        "modules": _modules(job),
        "env": _env(job),
        "backend": job.spec.backend,
        "task": TASKS.get(job.spec.task, ""),
        "per_node": _words(per_node(job)),
        "binds": "".join(f' "{_path(path)}"' for path in job.site.binds),
        "gpus": gpu_option(job),
        "wrapper": _words(wrapper()),
        "words": _continued([_words(layer) for layer in launch]),
        "continued": scheduler.continued(),
    }
    folder = scheduler.templates
    for slot, name in {
        "choice": f"{folder}/choice",
        "where": f"{folder}/where",
        "venv": "venv_local" if job.site.venv == "local" else "",
        "stage": "stage",
        "meeting": "" if template == "alone" else f"{folder}/meeting",
        "traps": f"{folder}/traps",
        "launch": "launch",
        "attempts": f"attempts_{template}",
        "again": f"{folder}/again" if job.site.resume == "requeue" else "",
    }.items():
        slots[slot] = _fill(name, slots) if name else ""
    return _fill(SKELETONS.get(job.spec.task, "job"), slots) + "\n"


def _fill(name: str, slots: Dict[str, str]) -> str:
    """Return a template with its slots filled; a line that holds only an empty slot goes."""
    lines = []
    for line in (TEMPLATES / f"{name}.bash").read_text(encoding="utf-8").splitlines():
        filled = SLOT.sub(lambda slot: slots[slot[1]], line)
        if filled or not line:
            lines.append(filled)
    return "\n".join(lines)


def _words(words: List[Word]) -> str:
    return " ".join(quote(word) for word in words)


def _continued(lines: List[str]) -> str:
    """Return one command over several lines, as it stands in a function."""
    return " \\\n        ".join(lines)


def _commented(lines: List[Tuple[str, str]]) -> str:
    return "\n".join(f"{line:<{COMMENTS_FROM}} # {why}" if why else line for line, why in lines)


def _settings(job: Job, scheduler: Scheduler) -> str:
    spec, site = job.spec, job.site
    disk: Setting = ("LOCAL_DISK", _path(site.local_disk), "of each node: caches, and copies if STAGE=1")
    rows: List[Setting] = [
        *scheduler.settings(job),
        ("IMAGE", "slipway.sif", "`make image` builds it"),
        ("VENV", ".venv", "`make setup` makes it"),
        ("CONFIG", default(spec.config), "what is trained, and how"),
        ("TRAIN_SCRIPT", "", "run this Python script instead of the trainer"),
        ("DATA", "", "the trainer's --data-dir; none for sets that it brings along"),
        ("OUTPUT", "runs", "run folders are made here; on a disk that all nodes share"),
        ("DEVICE", spec.device, "cuda, cpu, or auto: a GPU where there is one"),
        disk,
        ("STAGE", "0", "1: copy image and data to LOCAL_DISK first"),
    ]
    if spec.task in SETTINGS:
        rows = [*SETTINGS[spec.task], (*disk[:2], "of the node: caches and temporary files")]
    return _commented([(f': "${{{name}:={value}}}"', why) for name, value, why in rows])


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

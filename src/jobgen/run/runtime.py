"""The image or the Python environment of a program: choose it, and check it on the login node."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from jobgen.base.errors import JobgenError, UsageError, warn
from jobgen.base.job import Job
from jobgen.jobs.precheck import need
from jobgen.resolve.settings import settings_of
from jobgen.run.sharing import check_shared, find_place
from jobgen.runtimes import container_of
from jobgen.schedulers import scheduler_of
from slipway.base.contract import refusal
from slipway.base.errors import did_you_mean

NAMES = ("USE_CONTAINER", "SLIPWAY_IMAGE", "SLIPWAY_VENV")
"""Settings that choose an image or an environment."""
ACTIVE = ("VIRTUAL_ENV", "CONDA_PREFIX")
"""Variables with the folder of the active environment. An environment of conda can contain a virtual one."""
NOT_FOLDERS = {"local": "an environment built on each node", "modules": "the Python of the site's modules"}
"""Values of SLIPWAY_VENV that name no environment, and what they mean."""
IMPORTS = Path(__file__).with_name("imports.py")
LIMIT = 20
"""Seconds that the environment's Python may take to answer: its packages can be on a slow disk."""


class Runtime(NamedTuple):
    """Where a program runs."""

    settings: Dict[str, str]
    """Settings for the submission: USE_CONTAINER, SLIPWAY_IMAGE or SLIPWAY_VENV, where the defaults differ."""
    line: str
    """Short text for people, such as ``image slipway.sif``."""


def choose_runtime(
    job: Job,
    environment: Mapping[str, str],
    *,
    image: Optional[str] = None,
    venv: Optional[str] = None,
    conda: Optional[str] = None,
) -> Runtime:
    """Return where the program of ``job`` runs: the first of these that is there.

    The value of a flag; what ``environment`` sets; the site's image; the active environment; the site's environment. An
    active environment without torch, such as one that has only jobgen, is skipped if one after it has torch.

    Args:
        job: the job that starts the program.
        environment: environment variables of the command.
        image: value of ``--image``: an image, as in SLIPWAY_IMAGE.
        venv: value of ``--venv``: an environment, as in SLIPWAY_VENV.
        conda: value of ``--conda``: the name of an environment of conda.

    Raises:
        UsageError: for several flags, or an invalid value.
        JobgenError: if the image or environment of a flag or the active environment is missing, or there is none.
    """
    flags = {"--image": image, "--venv": venv, "--conda": conda}
    given = {flag: value for flag, value in flags.items() if value is not None}
    if len(given) > 1:
        raise UsageError("flag-conflict", f"{' and '.join(given)} exclude each other: keep one of them.")
    for flag, value in given.items():
        if why := refusal("SLIPWAY_IMAGE", value):  # all three are paths or names on one line
            raise UsageError("bad-flag-value", f"{flag}: {why.partition(': ')[2]}.")
    if image is not None:
        return _given_image(image, job)
    if venv is not None:
        return _environment(venv, "--venv", job, environment)
    if conda is not None:
        return _environment(f"conda:{conda}", "--conda", job, environment)
    return _found(job, environment)


def check_program(
    job: Job, environment: Mapping[str, str], script: Optional[Path], *, folder: Optional[Path] = None
) -> Iterator[JobgenError]:
    """Check that nodes see a program and its image or environment, and that the environment has what it imports.

    Yield an error for each that the nodes cannot see, an environment without torch, and a script that is not Python.
    Warn of imports that the environment lacks. Without a queue, only the latter two are checked. An image is not asked
    for modules, because it takes seconds to start; nor are an environment that only the nodes have and one that the
    site's modules complete.

    Args:
        job: the job that starts the program.
        environment: environment variables with the job's settings, those of ``choose_runtime`` included.
        script: the file of the program; None: a module that is not below ``folder`` (``-m``).
        folder: the folder in which a module is searched for; None: that of the script, as for ``python SCRIPT``.
    """
    values = _values(job, environment)
    venv = _folder_of(values["SLIPWAY_VENV"], environment) if values["USE_CONTAINER"] == "0" else None
    image = values["SLIPWAY_IMAGE"] if values["USE_CONTAINER"] == "1" else None
    paths = {"the script" if script else "the folder": str(script or folder or Path.cwd())}
    if image and container_of(job.site.container).runs_file(image):
        paths["the image"] = image
    if venv:
        paths["the environment"] = venv
    places = set()
    for what, path in paths.items():
        if (place := find_place(path, job, environment)) in places:
            continue  # one message for each place
        places.add(place)
        image_too = what == "the environment" and _site_image(job, environment)
        instead = f"use the image {image_too} (--image)" if image_too else ""
        yield from check_shared(path, what, job, environment, instead=instead)
    if venv and not _depends_on_modules(venv, job, environment):
        is_active = venv in {environment.get(name) for name in ACTIVE}
        yield from _check_imports(venv, script, folder, name=f"{'the active environment ' * is_active}{venv}")


def check_imports(script: Optional[Path], python: str, *, folder: Optional[Path] = None) -> List[str]:
    """Return the modules that a script imports and an environment lacks; the first is torch if it lacks that.

    Empty if the environment's Python gives no answer: then the job reports the reason.

    Args:
        script: the script; None: only torch is looked for.
        python: the Python of the environment.
        folder: the first folder in which the script finds modules; None: the script's.

    Raises:
        JobgenError: if the script is not valid Python for ``python``.
    """
    first = folder or (script.resolve().parent if script else Path.cwd())
    words = [python, "-I", str(IMPORTS), str(first), *([str(script)] if script else [])]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            timeout=LIMIT, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.splitlines() or [b""]
    kind, _, found = lines[-1].decode(errors="replace").partition(" ")  # the environment may print lines at start
    if kind == "invalid":
        number, _, why = found.partition(" ")
        raise JobgenError("bad-script", f"{script}, line {number}: {why} (read by {python}).")
    return found.split() if kind == "missing" else []


def module_file(name: str) -> Optional[Path]:
    """Return the file that ``python -m name`` runs, if it is below the current folder; else None."""
    path = Path(*name.split("."))
    files = (path / "__main__.py", path.with_suffix(".py"))
    return next((file for file in files if file.is_file()), None)


def _given_image(image: str, job: Job) -> Runtime:
    runtime = container_of(job.site.container)
    if runtime.runs_file(image):
        for error in need("no-image", "--image", image, "correct the path, or use --venv or --conda"):
            raise error
    elif not runtime.pulls_images:
        raise JobgenError("image-not-local", f"--image: {runtime.name} would convert {image} in each process: convert "
                          f"it once with `{runtime.name} pull my.sif {image}`, and use --image my.sif.")  # fmt: skip
    return Runtime({"USE_CONTAINER": "1", "SLIPWAY_IMAGE": image}, f"image {image}")


def _found(job: Job, environment: Mapping[str, str]) -> Runtime:
    """Return the runtime that ``environment`` sets or that is there."""
    values = _values(job, environment)
    image, venv, runtime = values["SLIPWAY_IMAGE"], values["SLIPWAY_VENV"], container_of(job.site.container)
    is_container_site = job.site.container != "none"
    is_file = image is not None and runtime.runs_file(image)
    if any(environment.get(name) for name in NAMES) or (is_container_site and not is_file):
        return Runtime({}, _line(values, job))
    # On one machine a script uses the environment if the runtime is missing; elsewhere only the nodes need to have it.
    runs_here = shutil.which(runtime.name) or not scheduler_of(job.scheduler).one_machine
    if image and _site_image(job, environment) and runs_here:
        return _runtime({"USE_CONTAINER": "1", "SLIPWAY_IMAGE": image}, f"image {image}", job, environment)
    if found := _with_torch(_candidates(venv, job, environment), job, environment):
        return found
    both = f"no image {image}, " if is_container_site else ""
    raise JobgenError(
        "no-image" if is_container_site else "no-environment",
        f"{both}no active environment, and no environment {venv}: activate one that has torch, name one with --venv "
        f"DIR or --conda NAME, or an image with --image FILE (`jobgen submit image_build --site SITE` builds one).",
    )


def _candidates(venv: Optional[str], job: Job, environment: Mapping[str, str]) -> List[Tuple[str, Optional[str]]]:
    """Return the active environments and that of the site, ``venv``, if it is there: the source and value of each."""
    found: List[Tuple[str, Optional[str]]] = [(name, environment[name]) for name in ACTIVE if environment.get(name)]
    folder = _folder_of(venv, environment)
    if venv is None or venv in NOT_FOLDERS or _has_python(folder):
        active = {os.path.realpath(value) for _, value in found if value}
        if not (folder and os.path.realpath(folder) in active):
            found.append((f"site {job.site.name}", venv))
    return found


def _with_torch(
    candidates: Sequence[Tuple[str, Optional[str]]], job: Job, environment: Mapping[str, str]
) -> Optional[Runtime]:
    """Return the first candidate with torch, or the first if none has torch; None if there are none.

    The only candidate is not asked: ``check_program`` does that.
    """
    without: List[str] = []
    for source, venv in candidates if len(candidates) > 1 else []:
        folder = _folder_of(venv, environment)
        if folder and _lacks_torch(folder, job, environment):
            without.append(folder)
            continue
        found = _environment(venv, source, job, environment)
        why = f", because the active environment {' and '.join(without)} has no torch" if without else ""
        return found._replace(line=found.line + why)
    return _environment(candidates[0][1], candidates[0][0], job, environment) if candidates else None


def _lacks_torch(venv: str, job: Job, environment: Mapping[str, str]) -> bool:
    """Return whether an environment answers that it has no torch."""
    return not _depends_on_modules(venv, job, environment) and "torch" in check_imports(None, f"{venv}/bin/python")


def _environment(venv: Optional[str], source: str, job: Job, environment: Mapping[str, str]) -> Runtime:
    """Return the runtime of ``venv``, a value of SLIPWAY_VENV (None: known only on the nodes), which ``source`` names.

    Raises:
        JobgenError: if this machine has no such environment.
    """
    wanted = {"USE_CONTAINER": "0", **({"SLIPWAY_VENV": venv} if venv else {})}
    folder = _folder_of(venv, environment)
    if venv and not folder and venv not in NOT_FOLDERS:
        name, known = venv.partition(":")[2], sorted(_conda_environments(environment))
        raise JobgenError(
            "no-environment",
            f"{source}: conda lists no environment {name} in ~/.conda/environments.txt.{did_you_mean(name, known)} "
            f"Known: {', '.join(known) or 'none'}. --venv takes the folder of an environment.",
        )
    if folder:
        remedy = "deactivate it, or name" if source in ACTIVE else "correct the path, or name"
        for error in need("no-environment", source, f"{folder}/bin/python", f"{remedy} another one with --venv"):
            raise error
    where = f"environment {folder}" if folder else NOT_FOLDERS.get(venv or "", "environment")
    line = f"{where} ({'active' if source in ACTIVE else source})"
    # A run that continues has other defaults than its site: then the value of a flag must be set, whatever they are.
    return Runtime(wanted, line) if source.startswith("--") else _runtime(wanted, line, job, environment)


def _runtime(wanted: Dict[str, str], line: str, job: Job, environment: Mapping[str, str]) -> Runtime:
    """Return a runtime with those of the settings ``wanted`` that ``environment`` and the defaults do not have."""
    values = _values(job, environment)
    return Runtime({name: value for name, value in wanted.items() if values[name] != value}, line)


def _values(job: Job, environment: Mapping[str, str]) -> Dict[str, Optional[str]]:
    """Return the values of NAMES; None for a path whose variables are set only on the nodes."""
    return {row.name: row.value for row in settings_of(job, environment) if row.name in NAMES}


def _line(values: Mapping[str, Optional[str]], job: Job) -> str:
    """Return the line for settings that decide without this module."""
    unknown = f"of site {job.site.name}"
    image = f"image {values['SLIPWAY_IMAGE'] or unknown}"
    venv = f"environment {values['SLIPWAY_VENV'] or unknown}"
    lines = {"1": image, "0": NOT_FOLDERS.get(values["SLIPWAY_VENV"] or "", venv)}
    return lines.get(values["USE_CONTAINER"] or "", f"{image} if it runs here, else {venv}")


def _site_image(job: Job, environment: Mapping[str, str]) -> str:
    """Return the file of the site's image; "" if the site has no container or this machine has no such file."""
    image = _values(job, {**environment, "SLIPWAY_IMAGE": ""})["SLIPWAY_IMAGE"]
    is_there = job.site.container != "none" and image and os.access(image, os.R_OK)
    return image if image and is_there else ""


def _folder_of(venv: Optional[str], environment: Mapping[str, str]) -> Optional[str]:
    """Return the folder that a value of SLIPWAY_VENV names; None if it names none or conda does not know it."""
    if not venv or venv in NOT_FOLDERS:
        return None
    if venv.startswith("conda:"):
        return _conda_environments(environment).get(venv[len("conda:") :])
    return venv


def _conda_environments(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the folders of conda's environments by name, from conda's list, as find_conda of lib/python.bash does."""
    try:
        lines = Path(environment.get("HOME") or "/", ".conda", "environments.txt").read_bytes().splitlines()
    except OSError:
        return {}
    folders = [os.fsdecode(line) for line in lines]
    return {Path(folder).name: folder for folder in folders if _has_python(folder)}


def _has_python(folder: Optional[str]) -> bool:
    return bool(folder) and os.access(f"{folder}/bin/python", os.X_OK)


def _depends_on_modules(venv: str, job: Job, environment: Mapping[str, str]) -> bool:
    """Return whether an environment also has packages of the site's modules, which only the job loads."""
    try:
        text = Path(venv, "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:  # of conda
        return False
    inherits = re.search(r"(?im)^include-system-site-packages *= *true", text)
    return bool(inherits) and bool(job.site.modules or environment.get("PYTHONPATH"))


def _check_imports(venv: str, script: Optional[Path], folder: Optional[Path], *, name: str) -> Iterator[JobgenError]:
    """Yield an error for an environment without torch or an invalid script; warn of other missing modules.

    Messages call the environment ``name``.
    """
    try:
        missing = check_imports(script, f"{venv}/bin/python", folder=folder)
    except JobgenError as error:
        yield error
        return
    if "torch" in missing:
        text = f"{name} has no torch, which starts the ranks: install it there, or use another environment (--venv DIR"
        yield JobgenError("no-environment", f"{text}, --conda NAME) or an image (--image FILE).")
    elif missing:
        warn("missing-import", f"{script} imports {', '.join(missing)}, which {name} lacks")

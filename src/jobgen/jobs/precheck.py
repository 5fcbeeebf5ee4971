"""Prechecks of a job on the login node, before submission: settings, files, arguments, GPUs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Mapping, Optional

from jobgen.base.errors import JobgenError, UsageError, warn
from jobgen.base.job import BUILDS, Job
from jobgen.base.paths import data_folder
from jobgen.base.shell import words_of
from jobgen.render.launch import backends
from jobgen.resolve.settings import settings_of
from jobgen.runtimes import Container, container_of
from slipway.base.contract import JOB_SCRIPT, OTHER_VARIABLES, SETTINGS, refusal
from slipway.base.errors import did_you_mean

Settings = Dict[str, Optional[str]]


def precheck(job: Job, environment: Mapping[str, str], arguments: List[str], *, site: str) -> Iterator[JobgenError]:
    """Yield an error for each problem, visible on this machine, that would prevent the job from starting or end it.

    Args:
        job: the job to submit.
        environment: environment variables with the job's settings.
        arguments: arguments of the training program.
        site: the value of ``--site``.
    """
    settings: Settings = {setting.name: setting.value for setting in settings_of(job, environment)}
    yield from _check_settings(environment)
    if job.spec.task in BUILDS:
        yield from _check_build(job, arguments, settings)
        return
    if job.spec.task == "shell":
        yield from _check_runtime(job, settings, environment, site=site)
        yield from _check_data(job, settings)
        return
    yield from _check_arguments(arguments, settings)
    run_dir = environment.get("SLIPWAY_RUN_DIR")
    if not (run_dir and Path(run_dir, JOB_SCRIPT).is_file()):  # an existing run uses its saved settings
        yield from _check_backend(job, settings, site=site)
        yield from _check_runtime(job, settings, environment, site=site)
        yield from _check_inputs(job, settings)


def find_config(path: Path) -> Path:
    """Return ``path``, or jobgen's packaged file of that name if ``path`` is in configs/ and missing."""
    packaged = data_folder("configs") / path.name
    return path if path.exists() or path.parent != Path("configs") or not packaged.is_file() else packaged


def need(slug: str, name: str, path: str, remedy: str, *, file: bool = False) -> Iterator[JobgenError]:
    """Yield an error with ``slug`` if this machine cannot read ``path``, the value of the setting ``name``.

    With ``file``, ``path`` must be a regular file. ``remedy`` ends the message.
    """
    if not os.access(path, os.R_OK):
        yield JobgenError(slug, f"{name}: {path} is missing or not readable on this machine: {remedy}.")
    elif file and not Path(path).is_file():
        yield JobgenError(slug, f"{name}: {path} is not a file: {remedy}.")


def _check_settings(environment: Mapping[str, str]) -> Iterator[JobgenError]:
    """Check the value of each setting in ``environment``, and warn about unknown names."""
    for setting in SETTINGS.values():
        if (value := environment.get(setting.name)) and (why := refusal(setting.name, value)):
            yield JobgenError("bad-value", f"{why}.")
    for name in environment:
        if name.startswith("SLIPWAY_") and name not in SETTINGS and name not in OTHER_VARIABLES:
            warn("unknown-setting", f"{name} is not a setting.{did_you_mean(name, list(SETTINGS))}")


def _check_build(job: Job, arguments: List[str], settings: Settings) -> Iterator[JobgenError]:
    """Check the needs of a build job: a clone of the project, a known variant, a readable wheelhouse."""
    program = BUILDS[job.spec.task]
    if not os.access(program, os.X_OK):
        yield JobgenError(
            "no-clone", f"{job.spec.name} needs a clone of the project: {program} is missing in {Path.cwd()}."
        )
        return
    if arguments:
        yield UsageError(
            "unexpected-argument",
            f"{job.spec.name} takes no arguments: remove those after --: {shlex.join(arguments)}.",
        )
    variant = settings["SLIPWAY_VARIANT"] or ""
    known = [path.stem for path in Path("containers", "pins").glob("*.env")]
    if variant not in known:
        yield JobgenError(
            "unknown-name", f"SLIPWAY_VARIANT: containers/pins has no {variant}.env.{did_you_mean(variant, known)}"
        )
        return
    _warn_of_gpu_mismatch(lambda: variant)
    if wheelhouse := settings.get("SLIPWAY_WHEELHOUSE"):
        yield from need("no-wheelhouse", "SLIPWAY_WHEELHOUSE", wheelhouse, "create it with `make wheelhouse`")


def _check_arguments(arguments: List[str], settings: Settings) -> Iterator[JobgenError]:
    """Check the trainer's arguments: an unknown flag would end the job on the nodes."""
    if given := settings.get("SLIPWAY_ARGS"):
        if arguments:
            yield UsageError(
                "flag-conflict", "arguments are given both in SLIPWAY_ARGS and after --: unset SLIPWAY_ARGS."
            )
            return
        try:
            arguments = words_of(given, what="SLIPWAY_ARGS is")
        except JobgenError as error:
            yield error
            return
    if not arguments or settings.get("SLIPWAY_SCRIPT"):
        return
    from jobgen.jobs.trainer_flags import load_schema  # noqa: PLC0415 -- most jobs have no arguments
    from slipway.base.flags import ArgumentError, read_arguments  # noqa: PLC0415

    try:
        files = read_arguments(arguments, load_schema()).files
    except ArgumentError as error:
        yield UsageError(error.slug, str(error) if str(error).endswith("?") else f"{error}.")
        return
    if files:
        yield UsageError(
            "unexpected-argument",
            f"unexpected argument {files[0]!r}: set SLIPWAY_CONFIG instead, which the run keeps.",
        )


def _check_backend(job: Job, settings: Settings, *, site: str) -> Iterator[JobgenError]:
    backend, known = settings["BACKEND"], backends(job)
    if backend not in known:
        instead = "horovod-gloo" if backend == "horovod" else backend
        yield JobgenError(
            "wrong-backend",
            f"BACKEND={backend}: {job.spec.name} launches only {' or '.join(known)}: "
            f"use `jobgen submit {instead} --site {shlex.quote(site)}`.",
        )


def _check_runtime(job: Job, settings: Settings, environment: Mapping[str, str], *, site: str) -> Iterator[JobgenError]:
    """Check that the image or the Python environment of the job exists."""
    here = "" if os.access(BUILDS["image"], os.X_OK) else " in a clone"
    if not settings["USE_CONTAINER"]:
        return  # on one machine the script uses the image if it exists, else the environment
    if settings["USE_CONTAINER"] == "1":
        image, runtime = settings["SLIPWAY_IMAGE"], container_of(job.site.container)
        if image is not None and runtime.runs_file(image):
            made = runtime.image_source
            if runtime.runs_sif:
                made = f"build it with `jobgen submit image_build --site {shlex.quote(site)}`{here}"
            yield from need("no-image", "SLIPWAY_IMAGE", image, f"{made}, or set USE_CONTAINER=0")
            _warn_of_gpu_mismatch(lambda: _variant_of(image, runtime))
        return
    venv = settings["SLIPWAY_VENV"]
    if venv == "local":
        yield from _check_local_venv(job, environment.get("SLIPWAY_WHEELHOUSE"))
    elif venv == "modules":
        if not job.site.modules:
            yield JobgenError(
                "no-modules", f"SLIPWAY_VENV=modules: site {job.site.name} lists no modules: add modules to its file."
            )
    elif venv is not None and not venv.startswith("conda:"):
        made = f"build it with `jobgen submit venv_build --site {shlex.quote(site)}`{here}"
        yield from need("no-environment", "SLIPWAY_VENV", f"{venv}/bin/python", f"{made}, or set USE_CONTAINER=1")


def _check_local_venv(job: Job, wheelhouse: Optional[str]) -> Iterator[JobgenError]:
    """Check the sources from which each node builds its virtual environment: a clone, and wheels or downloads."""
    if not os.access(BUILDS["venv"], os.X_OK):
        yield JobgenError(
            "no-clone",
            f"site {job.site.name} builds a virtual environment on each node, which needs a clone of the project: "
            f"{BUILDS['venv']} is missing in {Path.cwd()}.",
        )
    if wheelhouse:
        yield from need("no-wheelhouse", "SLIPWAY_WHEELHOUSE", wheelhouse, "create it with `make wheelhouse`")
    elif not job.site.downloads:
        yield JobgenError(
            "no-wheelhouse",
            "SLIPWAY_VENV=local would download packages on each node: set SLIPWAY_WHEELHOUSE to a folder filled by "
            f"`make wheelhouse`, or set downloads = true in the file of site {job.site.name}.",
        )


def _check_inputs(job: Job, settings: Settings) -> Iterator[JobgenError]:
    """Check the user script or the configuration, and the data."""
    if script := settings.get("SLIPWAY_SCRIPT"):
        if not script.startswith("-m "):
            yield from need("no-script", "SLIPWAY_SCRIPT", script, "correct it", file=True)
    else:
        path = Path(settings["SLIPWAY_CONFIG"] or "")
        yield from need("no-script", "SLIPWAY_CONFIG", str(find_config(path)), "see configs/", file=True)
    yield from _check_data(job, settings)


def _check_data(job: Job, settings: Settings) -> Iterator[JobgenError]:
    if data := settings["SLIPWAY_DATA"]:
        missing = list(need("no-data", "SLIPWAY_DATA", data, "correct it"))
        yield from missing
        mounts = container_of(job.site.container).mounts_squashfs
        if not missing and (why := data_refusal(settings, mounts_squashfs=mounts)):
            yield JobgenError("bad-data-file", f"SLIPWAY_DATA: {why}.")


def _variant_of(image: str, runtime: Container) -> str:
    """Return the variant in the labels of an image of this project; "" if the runtime reports none."""
    if not runtime.inspect:
        return ""
    try:
        words = [*runtime.inspect, image]
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"(?m)^slipway\.variant: (.+)$", done.stdout)
    return found[1] if found else ""


def _warn_of_gpu_mismatch(find_variant: Callable[[], str]) -> None:
    """Warn if a variant does not run on this machine's GPUs; not an error, because the nodes may have other GPUs."""
    from slipway.base.gpu import advice, describe, fits, query_gpus_in_child  # noqa: PLC0415 -- for images and builds

    if (gpus := query_gpus_in_child()) and not fits(variant := find_variant(), gpus):
        warn(
            "gpu-mismatch",
            f"the {variant} variant does not run on this machine's GPUs, {describe(gpus)}; for nodes with such GPUs: "
            f"{advice(gpus)}",
        )


LIMIT = 60
"""Seconds that the data check may take: it reads a compressed tar up to its first file, which can be far inside."""
ASK = 'source "$1" && inspect_data && printf %s "$data_refusal"'


def data_refusal(settings: Mapping[str, Optional[str]], *, mounts_squashfs: bool) -> str:
    """Return why the job cannot use its data, in one line; "" if it can.

    Also return "" if the check cannot run here (no Bash, or no answer within LIMIT): then the job reports the error.

    Args:
        settings: the job's settings.
        mounts_squashfs: whether the container runtime mounts a squashfs image as a folder.
    """
    names = ("SLIPWAY_DATA", "SLIPWAY_STAGE", "SLIPWAY_SCRIPT", "SLIPWAY_CONFIG", "USE_CONTAINER")
    values = [f"{name}={settings.get(name) or ''}" for name in names]
    program = ["bash", "-c", ASK, "-", str(data_folder("jobscripts", "lib") / "data.bash")]
    words = ["env", *values, f"mounts_squashfs={int(mounts_squashfs)}", *program]
    try:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=LIMIT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout

"""Settings of a job: defaults from jobgen, site and spec, and values at submission."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional

from jobgen.base.job import Job, Site
from jobgen.base.shell import default
from jobgen.schedulers import scheduler_of
from slipway.base.contract import SETTINGS

SPEC_SETTINGS = {"BACKEND", "SLIPWAY_CONFIG", "SLIPWAY_DEVICE", "SLIPWAY_RANKS_PER_NODE", "SLIPWAY_DEVICES_PER_RANK",
           "SLIPWAY_MAX_REQUEUES", "SLIPWAY_MAX_RESTARTS", "SLIPWAY_SPARES", "SLIPWAY_SHRINK",
           "SLIPWAY_NODES"}  # fmt: skip
"""Settings whose defaults come from the spec."""
TRAINING_SETTINGS = {"BACKEND", "SLIPWAY_CONFIG", "SLIPWAY_SCRIPT", "SLIPWAY_RANKS_PER_NODE", "SLIPWAY_MAX_REQUEUES",
               "SLIPWAY_MAX_RESTARTS", "SLIPWAY_SPARES", "SLIPWAY_SHRINK", "SLIPWAY_NOTIFY",
               "SLIPWAY_PROFILER", "SLIPWAY_ARGS"}  # fmt: skip
"""Settings that jobs of ``jobgen shell`` do not read."""
SITE = Site(name="default")
VARIABLE = r"\$(?:\{(\w+)\}|(\w+))"
"""Pattern of a shell variable in a site's path."""


class Default(NamedTuple):
    """Default of a setting."""

    value: str
    field: str = ""
    """Site field that holds this path; variables in it are expanded. "": a literal value."""

    def in_bash(self) -> str:
        """Return the text of the default in ``: "${NAME:=text}"``.

        Raises:
            JobgenError: if a script cannot contain the value.
        """
        if not self.field:
            return default(self.value)
        text, end = "", 0
        for found in re.finditer(VARIABLE, self.value, flags=re.ASCII):
            text += default(self.value[end : found.start()])
            text += f"${{{found[1] or found[2]}:?is not set here, and the site names it as {self.field}}}"
            end = found.end()
        return text + default(self.value[end:])

    def expanded(self, environment: Mapping[str, str]) -> Optional[str]:
        """Return the value with variables expanded from ``environment``; None if one is unset or empty."""
        missing = False

        def value(found: re.Match[str]) -> str:
            nonlocal missing
            text = environment.get(found[1] or found[2], "")
            missing = missing or not text
            return text

        text = re.sub(VARIABLE, value, self.value, flags=re.ASCII) if self.field else self.value
        return None if missing else text


class Resolved(NamedTuple):
    """Value of a setting at submission."""

    name: str
    value: Optional[str]
    """None if variables in the site's path are set only on the nodes."""
    source: str
    """Source of the value: "set here", "site NAME", "spec NAME" or "default"."""


def defaults_of(job: Job) -> Dict[str, Default]:
    """Return the settings that the job script reads, in its order."""
    site, spec = job.site, job.spec
    disk = {"SLIPWAY_LOCAL_DISK": Default(site.local_disk, "local_disk")}
    if spec.task == "venv":
        values = {"SLIPWAY_VARIANT": "cuda", "SLIPWAY_WHEELHOUSE": "", "SLIPWAY_PYTHON": "python3",
                  "SLIPWAY_HOROVOD": "0", "SLIPWAY_NCCL_PATH": ""}  # fmt: skip
        return {"SLIPWAY_VENV": Default(site.venv, "venv"), **_plain(values), **disk}
    if spec.task == "shell":
        return {name: value for name, value in _training(job, disk).items() if name not in TRAINING_SETTINGS}
    if spec.task == "image":
        values = {"SLIPWAY_VARIANT": "cuda", "SLIPWAY_BASE_IMAGE": "", "SLIPWAY_BUILD_ARGS": ""}
        return {"SLIPWAY_IMAGE": Default(site.image, "image"), **_plain(values), **disk}
    return _training(job, disk)


def _training(job: Job, disk: Dict[str, Default]) -> Dict[str, Default]:
    site, spec, scheduler = job.site, job.spec, scheduler_of(job.scheduler)
    is_counted = not spec.ranks_per_node and (job.gpus_per_node or scheduler.one_machine)
    found = {
        "SLIPWAY_OUTPUT": Default(site.output, "output"),
        "USE_CONTAINER": Default("" if scheduler.one_machine else str(int(site.container != "none"))),
        "BACKEND": Default(spec.backend),
        "SLIPWAY_IMAGE": Default(site.image, "image"),
        "SLIPWAY_VENV": Default(site.venv, "venv"),
        "SLIPWAY_CONFIG": Default(spec.config),
        "SLIPWAY_SCRIPT": Default(""),
        "SLIPWAY_DATA": Default(site.data, "data"),
        "SLIPWAY_DEVICE": Default(spec.device),
        "SLIPWAY_RANKS_PER_NODE": Default("" if is_counted or spec.backend == "single" else str(job.ranks_per_node)),
        "SLIPWAY_DEVICES_PER_RANK": Default("" if spec.devices_per_rank == 1 else str(spec.devices_per_rank)),
        "SLIPWAY_MAX_REQUEUES": Default(str(spec.max_requeues)),
        "SLIPWAY_MAX_RESTARTS": Default(str(spec.max_restarts)),
        "SLIPWAY_SPARES": Default(str(spec.spares)),
        "SLIPWAY_SHRINK": Default(str(int(spec.shrink))),
        "SLIPWAY_NOTIFY": Default(site.notify, "notify"),
        "SLIPWAY_PROFILER": Default(""),
        **disk,
        "SLIPWAY_STAGE": Default("0"),
        "SLIPWAY_PREFLIGHT_SECONDS": Default("60"),
    }
    if spec.client:
        found |= _plain({"SLIPWAY_NODES": str(spec.nodes), "SLIPWAY_MIN_NODES": "", "SLIPWAY_WAIT_SECONDS": "3600"})
    if not scheduler.takes_arguments:
        found["SLIPWAY_ARGS"] = Default("")
    without = {"SLIPWAY_MAX_REQUEUES"} if job.resume == "none" else set()
    if spec.client:  # a Dask client requests new nodes instead
        without |= {"SLIPWAY_MAX_RESTARTS", "SLIPWAY_SPARES", "SLIPWAY_SHRINK"}
    elif scheduler.one_machine:
        without |= {"SLIPWAY_SPARES", "SLIPWAY_SHRINK"}
    without |= (
        {"SLIPWAY_SCRIPT", "SLIPWAY_PROFILER"} if spec.task == "selftest" else set()
    )  # the self-test runs the trainer
    return {name: value for name, value in found.items() if name not in without}


def _plain(values: Dict[str, str]) -> Dict[str, Default]:
    return {name: Default(value) for name, value in values.items()}


def settings_in(environment: Mapping[str, str]) -> Dict[str, str]:
    """Return the settings in ``environment`` that are not empty."""
    return {name: value for name in SETTINGS if (value := environment.get(name))}


def _source(job: Job, name: str, default: Default) -> str:
    """Return the source of a setting's default: the site, the spec, or jobgen ("default")."""
    if name == "USE_CONTAINER" or default.field:
        field = default.field or "container"
        return f"site {job.site.name}" if getattr(job.site, field) != getattr(SITE, field) else "default"
    return f"spec {job.spec.name}" if name in SPEC_SETTINGS else "default"


def settings_of(job: Job, environment: Mapping[str, str]) -> List[Resolved]:
    """Return all settings of the job with their values for a submission from ``environment``."""
    found = []
    for name, value in defaults_of(job).items():
        if environment.get(name):
            found.append(Resolved(name, environment[name], "set here"))
            continue
        found.append(Resolved(name, value.expanded(environment), _source(job, name, value)))
    return found

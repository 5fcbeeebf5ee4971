"""Resolution of a spec and a site to a Job, with errors for combinations that cannot run."""

from __future__ import annotations

import re
import shlex
from typing import List

import msgspec

from jobgen.base.errors import JobgenError
from jobgen.base.job import TRAINS, Job, JobSpec, Option, Site
from jobgen.launchers import Launcher, launcher_of
from jobgen.runtimes import container_of
from jobgen.schedulers import Scheduler, scheduler_of
from slipway.base.contract import SETTINGS

PROCESS_OPTIONS = ("nodes", "select", "ntasks", "ntasks-per-node")
"""Options of schedulers for the numbers of nodes and of processes that the scheduler starts."""
UNITS = {"M": 1, "G": 1024, "T": 1024 * 1024}
"""MiB per unit of memory, as in Slurm and PBS."""
MIG_PROFILE = r"(?:^|[_.-])[0-9]g\.[0-9]+gb"
"""Pattern in the GPU type of a MIG slice, such as a100_1g.5gb (NVIDIA's MIG User Guide, device names)."""
SITE_FIELD_OF_SETTING = {
    "USE_CONTAINER": "container",
    "SLIPWAY_IMAGE": "image",
    "SLIPWAY_VENV": "venv",
    "SLIPWAY_OUTPUT": "output",
    "SLIPWAY_DATA": "data",
    "SLIPWAY_NOTIFY": "notify",
    "SLIPWAY_LOCAL_DISK": "local_disk",
}
"""Site field that sets the default of each setting."""


def resolve(spec: JobSpec, site: Site, *, origin: List[str]) -> Job:
    """Return the job of ``spec`` at ``site``; ``origin`` is the command line that renders it.

    Raises:
        JobgenError: if spec and site conflict.
    """
    site = msgspec.structs.replace(site, resume=site.resume or _first_resume(scheduler_of(site.scheduler)))
    scheduler = scheduler_of(spec.client or site.scheduler)
    on_cpus, alone = spec.device == "cpu" or site.accelerator == "none", spec.backend == "single"
    each = spec.devices_per_rank
    ranks = 1 if alone else spec.ranks_per_node or site.gpus_per_node // each
    gpus = 0 if on_cpus else min(ranks * each, site.gpus_per_node)  # ranks may share GPUs
    cpus = (gpus or ranks * each) * site.cpus_per_gpu
    steps = ("" if spec.client else site.launcher) or scheduler.launcher
    launcher = spec.launcher or steps
    where = shlex.join(origin[3:5])  # --site and the name of its file, which can differ from the field ``name``
    _refuse_site(site, scheduler_of(site.scheduler))
    if spec.client:
        _refuse_client(spec, site, scheduler, where)
    if spec.task == "shell":
        _refuse_shell(spec, site, scheduler)
    _refuse_spec(spec, site, scheduler, ranks, where, on_cpus=on_cpus)
    _refuse_launcher(spec, site, scheduler, launcher_of(launcher), where)
    return Job(
        site=site,
        spec=spec,
        scheduler=scheduler.name,
        launcher=launcher,
        steps=steps,
        resume=_resume(site, scheduler),
        per_rank=spec.placement == "per-rank" or (spec.backend == "horovod" and spec.placement == "per-node"),
        ranks_per_node=ranks,
        gpus_per_node=gpus,
        cpus_per_node=cpus,
        mem_per_node=_mem(spec, site, cpus),
        options={**site.options, **(site.cpu_options if on_cpus else {}), **spec.options},
        origin=tuple(origin),
    )


def _resume(site: Site, scheduler: Scheduler) -> str:
    """Return the action after a time limit: the site's, or a client's only one."""
    if site.resume == "none" or site.resume in scheduler.resumes:
        return site.resume
    return _first_resume(scheduler)


def _first_resume(scheduler: Scheduler) -> str:
    """Return the scheduler's default action after a time limit: the first that it supports."""
    return next(iter(scheduler.resumes), "none")


def _mem(spec: JobSpec, site: Site, cpus: int) -> int:
    """Return the MiB per node that the job requests: the spec's, or a share of the site's, in proportion to cores."""
    if spec.mem_per_node:
        return _mebibytes(spec.mem_per_node, f"{spec.name}: mem_per_node")
    if not site.mem:
        return 0
    all_cpus = max(site.gpus_per_node, 1) * site.cpus_per_gpu
    return _mebibytes(site.mem, f"site {site.name}: mem") * min(cpus, all_cpus) // all_cpus


def _mebibytes(text: str, what: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,6})([MGT])", text, flags=re.ASCII)
    if not found:
        raise JobgenError("bad-value", f"{what} is {text[:60]!r}: write a number with M, G or T, such as '480G'.")
    return int(found[1]) * UNITS[found[2]]


def _refuse_site(site: Site, scheduler: Scheduler) -> None:
    """Reject a site with conflicting fields."""
    possible = [*scheduler.resumes, "none"]
    if site.resume not in possible and not scheduler.one_machine:
        known = " or ".join(repr(name) for name in possible)
        raise JobgenError(
            "bad-site", f"site {site.name}: resume = {site.resume!r}: under {scheduler.name} it must be {known}."
        )
    if site.gpu_type and scheduler.node_properties:
        raise JobgenError("bad-site", f"site {site.name}: gpu_type is only for Slurm: use node_properties with PBS.")
    for name in SETTINGS:
        if name in site.env:
            field = SITE_FIELD_OF_SETTING.get(name)
            instead = f"set the field {field}" if field else "set it at submission, for one job"
            raise JobgenError("bad-site", f"site {site.name}: {name} in [env] is a setting of job scripts: {instead}.")
    if "PATH" in site.env:
        raise JobgenError(
            "bad-site",
            f"site {site.name}: PATH in [env] has no effect because each node sets PATH: use the field path.",
        )
    if site.node_properties and not scheduler.node_properties:
        raise JobgenError(
            "bad-site", f"site {site.name}: node_properties are only for PBS: use options.constraint with Slurm."
        )


def _single_machine_command(where: str) -> str:
    """Return a sentence with the command that trains at a site of one machine."""
    return f"use `jobgen render ddp-local {where} --output ddp.sh && bash ddp.sh`."


def _refuse_client(spec: JobSpec, site: Site, client: Scheduler, where: str) -> None:
    """Reject a spec with a client that the client or the site cannot run."""
    giver = scheduler_of(site.scheduler)
    if not giver.dask_cluster:
        raise JobgenError(
            "no-scheduler",
            f"{spec.name} requests nodes from a scheduler, but site {site.name} has none: "
            f"{_single_machine_command(where)}",
        )
    if spec.backend != "ddp" or spec.task != "train":
        raise JobgenError(
            "conflicting-settings", f"{spec.name}: client = {spec.client!r} trains only with backend = 'ddp'."
        )
    if spec.launcher not in {"", client.launcher}:
        raise JobgenError(
            "conflicting-settings",
            f"{spec.name}: client = {spec.client!r} starts the ranks itself: remove launcher.",
        )
    if giver.time_option in {**site.options, **site.cpu_options, **spec.options}:
        raise JobgenError(
            "conflicting-settings",
            f"{spec.name} at {site.name}: options.{giver.time_option}: a client must know the time limit of its nodes: "
            f"remove the option, and add --set minutes=N.",
        )


def _refuse_shell(spec: JobSpec, site: Site, scheduler: Scheduler) -> None:
    """Reject a session of several nodes or ranks: the scheduler would run its command once for each, as if alone."""
    options = {**site.options, **spec.options}
    several = [f"nodes = {spec.nodes}"] if spec.nodes > 1 else []
    several += [f"spares = {spec.spares}"] if spec.spares else []
    several += [f"backend = {spec.backend!r}"] if spec.backend != "single" else []
    several += [
        f"options.{name} = {options[name]!r}"
        for name in PROCESS_OPTIONS
        if name in options and _count(options[name]) > 1
    ]
    if not several:
        return
    advice = "remove " + ("it" if len(several) == 1 else "them")
    if scheduler.allocate:
        advice += (
            ". For several nodes, write the job script with `jobgen run SCRIPT --nodes N --dry-run >FILE`, and run "
            f"`bash FILE` inside {scheduler.allocate}"
        )
    raise JobgenError("too-many-nodes", f"{', '.join(several)}: `jobgen shell` runs one process on one node: {advice}.")


def _count(value: Option) -> int:
    """Return the number of nodes or processes in an option: 3, 1-3 (Slurm), 3:ncpus=8 or 1:gpus=2+2:gpus=1 (PBS)."""
    heads = [re.match(r"(?:[0-9]+-)?([0-9]+)(?![\w.-])", part, flags=re.ASCII) for part in str(value).split("+")]
    return sum(int(head[1]) if head else 1 for head in heads)


def _refuse_launcher(spec: JobSpec, site: Site, scheduler: Scheduler, launcher: Launcher, where: str) -> None:
    """Reject a launcher that the site does not have or that cannot start the spec's ranks."""
    pair = f"{spec.name} at {site.name}"
    if launcher.schedulers and scheduler.name not in launcher.schedulers:
        owner = " or ".join(launcher.schedulers)
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: the launcher {launcher.name} works only under {owner}: add --set launcher=mpirun or "
            f"--set launcher=ssh.",
        )
    container = container_of(site.container)
    if container.launcher_of_container and launcher.name != container.launcher_of_container:
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: container = {container.name!r} is an option of {container.launcher_of_container}, but "
            f"{launcher.name} starts the ranks: add --set launcher={container.launcher_of_container} or --set "
            "container=none.",
        )
    if spec.mpi and not launcher.mpi_probe:
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: {launcher.name} does not start MPI ranks: use `jobgen render horovod-gloo {where}`, which needs "
            f"no MPI, or add --set launcher=mpirun.",
        )
    if spec.placement == "node-by-node" and (spec.mpi or not launcher.has_node_loop):
        what = "MPI" if spec.mpi else launcher.name
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: placement = 'node-by-node': {what} starts the ranks of all nodes with one command: "
            f"remove placement{'' if spec.mpi else ', or add --set launcher=ssh'}.",
        )
    if site.mpi == "other" and (spec.mpi or launcher.is_openmpi):
        instead = "horovod-gloo" if spec.mpi else "ddp"
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: the site's MPI is not the Open MPI of the images: use `jobgen render {instead} {where}`, which "
            f"needs no MPI.",
        )


def _refuse_spec(spec: JobSpec, site: Site, scheduler: Scheduler, ranks: int, where: str, *, on_cpus: bool) -> None:
    """Reject a spec that cannot run at ``site``."""
    pair = f"{spec.name} at {site.name}"
    if scheduler.one_machine and (spec.nodes > 1 or spec.placement != "per-node" or spec.mpi):
        raise JobgenError(
            "no-scheduler",
            f"{spec.name} needs a scheduler, but site {site.name} is one machine: {_single_machine_command(where)}",
        )
    if spec.task == "venv" and (site.venv in {"local", "modules"} or site.venv.startswith("conda:")):
        raise JobgenError(
            "nothing-to-build",
            f"{pair}: venv = {site.venv!r} needs no build: add --set venv=.venv to build a virtual environment.",
        )
    if spec.task == "image" and not container_of(site.container).runs_sif:
        raise JobgenError(
            "nothing-to-build",
            f"{pair}: the job builds a SIF, which {site.container} does not run. For the image of {site.container}, "
            f"{container_of(site.container).image_source}.",
        )
    if spec.backend == "single" and spec.nodes > 1:
        raise JobgenError("conflicting-settings", f"{spec.name}: backend 'single' uses one process: add --set nodes=1.")
    each, there = spec.devices_per_rank, site.gpus_per_node
    needed = each * max(ranks, 1)
    if each > 1 and needed > there and not (on_cpus or scheduler.one_machine):
        raise JobgenError(
            "too-few-gpus",
            f"{pair}: {max(ranks, 1)} rank(s) with {each} GPUs each (devices_per_rank) need {needed} GPUs per node, "
            f"but the nodes have {there} (gpus_per_node): lower the number of ranks or devices_per_rank (--set "
            f"devices_per_rank=N), or choose another site.",
        )
    if ranks * spec.nodes > 1 and not on_cpus and re.search(MIG_PROFILE, site.gpu_type, flags=re.ASCII):
        raise JobgenError(
            "mig-slices",
            f"{pair}: gpu_type = {site.gpu_type!r} is a MIG slice, and NCCL before 2.32 cannot connect ranks on "
            f"slices: use `jobgen render single {where}`, which trains on one slice.",
        )
    if ranks < 1 and there:
        raise JobgenError(
            "too-few-gpus",
            f"{pair}: a rank needs {each} devices (devices_per_rank), but gpus_per_node is {there}: add "
            f"--set ranks_per_node=N.",
        )
    if ranks < 1:
        raise JobgenError("no-gpu", f"{pair}: the site has no GPUs (gpus_per_node = 0): add --set ranks_per_node=N.")
    early = scheduler.early_seconds
    if not scheduler.one_machine and spec.task in TRAINS and spec.minutes * 60 <= spec.save_seconds + early:
        raise JobgenError(
            "time-too-short",
            f"{pair}: minutes = {spec.minutes} is not longer than the warning time before the limit, save_seconds = "
            f"{spec.save_seconds} plus {early} s: add --set minutes=N with a larger N.",
        )

"""A spec and a site made into one job, or the sentence that says why they make none."""

from __future__ import annotations

import re
import shlex
from typing import List

from jobgen.base.errors import JobgenError
from jobgen.base.job import TRAINS, Job, JobSpec, Site
from jobgen.launchers import Launcher, launcher_of
from jobgen.runtimes import container_of
from jobgen.schedulers import Scheduler, scheduler_of
from slipway.base.contract import SETTINGS

UNITS = {"M": 1, "G": 1024, "T": 1024 * 1024}
"""MiB of each unit of memory, as Slurm and PBS count."""
MIG_PROFILE = r"(?:^|[_.-])[0-9]g\.[0-9]+gb"
"""In the type of a GPU that is a slice of one, such as a100_1g.5gb (NVIDIA's MIG User Guide, device names)."""
FIELDS_OF_SETTINGS = {
    "USE_CONTAINER": "container",
    "SLIPWAY_IMAGE": "image",
    "SLIPWAY_VENV": "venv",
    "SLIPWAY_OUTPUT": "output",
    "SLIPWAY_DATA": "data",
    "SLIPWAY_NOTIFY": "notify",
    "SLIPWAY_LOCAL_DISK": "local_disk",
}
"""The fields of a site by which it says what a setting is."""


def resolve(spec: JobSpec, site: Site, *, origin: List[str]) -> Job:
    """Return what ``spec`` means at ``site``.

    Raises:
        JobgenError: if the two contradict each other.
    """
    scheduler = scheduler_of(spec.client or site.scheduler)
    on_cpus, alone = spec.device == "cpu" or site.accelerator == "none", spec.backend == "single"
    each = spec.devices_per_rank
    ranks = 1 if alone else spec.ranks_per_node or site.gpus_per_node // each
    gpus = 0 if on_cpus else min(ranks * each, site.gpus_per_node)  # ranks may share GPUs
    cpus = (gpus or ranks * each) * site.cpus_per_gpu
    steps = ("" if spec.client else site.launcher) or scheduler.launcher
    launcher = spec.launcher or steps
    where = shlex.join(origin[3:5])  # --site and what its file is called, which a field does not say
    _refuse_site(site, scheduler_of(site.scheduler))
    if spec.client:
        _refuse_client(spec, site, scheduler, where)
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
        mem_per_node=_mem(site, cpus),
        options={**site.options, **(site.cpu_options if on_cpus else {}), **spec.options},
        origin=tuple(origin),
    )


def _resume(site: Site, scheduler: Scheduler) -> str:
    """Return what follows a time limit: what the site says, or the one thing that a client can do."""
    if site.resume == "none" or site.resume in scheduler.resumes:
        return site.resume
    return next(iter(scheduler.resumes), "none")


def _mem(site: Site, cpus: int) -> int:
    """Return the MiB of a node that the job asks for: its share, by the cores that it asks for."""
    if not site.mem:
        return 0
    found = re.fullmatch(r"([1-9][0-9]{0,6})([MGT])", site.mem, flags=re.ASCII)
    if not found:
        raise JobgenError(
            "bad-value", f"site {site.name}: mem is {site.mem[:60]!r}: write a number and M, G or T, such as '480G'."
        )
    all_cpus = max(site.gpus_per_node, 1) * site.cpus_per_gpu
    return int(found[1]) * UNITS[found[2]] * min(cpus, all_cpus) // all_cpus


def _refuse_site(site: Site, scheduler: Scheduler) -> None:
    """Refuse a site that contradicts itself."""
    possible = [*scheduler.resumes, "none"]
    if site.resume not in possible and not scheduler.one_machine:
        known = " or ".join(repr(name) for name in possible)
        raise JobgenError(
            "bad-site", f"site {site.name}: resume = {site.resume!r}: under {scheduler.name} it can be {known}."
        )
    if site.gpu_type and scheduler.node_properties:
        raise JobgenError("bad-site", f"site {site.name}: gpu_type is for Slurm; with PBS use node_properties.")
    for name in SETTINGS:
        if name in site.env:
            field = FIELDS_OF_SETTINGS.get(name)
            instead = f"set the field {field}" if field else "it belongs to a job: set it at submission"
            raise JobgenError("bad-site", f"site {site.name}: {name} in [env] is a setting of job scripts: {instead}.")
    if "PATH" in site.env:
        raise JobgenError(
            "bad-site",
            f"site {site.name}: PATH in [env] would have no effect, as every node has one: use the field path.",
        )
    if site.node_properties and not scheduler.node_properties:
        raise JobgenError(
            "bad-site", f"site {site.name}: node_properties are for PBS; with Slurm use options.constraint."
        )


def _here(where: str) -> str:
    """Return the command that trains at a site of one machine."""
    return f"`jobgen render ddp-local {where} --output ddp.sh && bash ddp.sh` trains there."


def _refuse_client(spec: JobSpec, site: Site, client: Scheduler, where: str) -> None:
    """Refuse what a client cannot do at the site."""
    giver = scheduler_of(site.scheduler)
    if not giver.dask_cluster:
        raise JobgenError(
            "no-scheduler", f"{spec.name} asks a scheduler for nodes, and site {site.name} has none: {_here(where)}"
        )
    if spec.backend != "ddp" or spec.task != "train":
        raise JobgenError(
            "conflicting-settings", f"{spec.name}: client = {spec.client!r} trains with backend = 'ddp' only."
        )
    if spec.launcher not in {"", client.launcher}:
        raise JobgenError(
            "conflicting-settings",
            f"{spec.name}: client = {spec.client!r} starts the ranks itself: leave launcher out.",
        )
    if giver.time_option in {**site.options, **site.cpu_options, **spec.options}:
        raise JobgenError(
            "conflicting-settings",
            f"{spec.name} at {site.name}: options.{giver.time_option}: a client has to know the time limit of its "
            f"nodes: leave it out, and add --set minutes=N.",
        )


def _refuse_launcher(spec: JobSpec, site: Site, scheduler: Scheduler, launcher: Launcher, where: str) -> None:
    """Refuse a launcher that the site does not have, or that cannot start these ranks."""
    pair = f"{spec.name} at {site.name}"
    if launcher.schedulers and scheduler.name not in launcher.schedulers:
        owner = " or ".join(launcher.schedulers)
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: the launcher {launcher.name} works under {owner} only: add --set launcher=mpirun, or "
            f"--set launcher=ssh.",
        )
    container = container_of(site.container)
    if container.of_launcher and launcher.name != container.of_launcher:
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: container = {container.name!r} is an option of {container.of_launcher}, and {launcher.name} "
            f"starts the ranks: add --set launcher={container.of_launcher}, or --set container=none.",
        )
    if spec.mpi and not launcher.mpi_probe:
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: {launcher.name} starts no MPI: `jobgen render horovod-gloo {where}` needs none; or add "
            f"--set launcher=mpirun.",
        )
    if spec.placement == "node-by-node" and (spec.mpi or not launcher.has_node_loop):
        what = "MPI" if spec.mpi else launcher.name
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: placement = 'node-by-node': {what} starts the ranks of all nodes by one command: "
            f"leave placement out{'' if spec.mpi else ', or add --set launcher=ssh'}.",
        )
    if site.mpi == "other" and (spec.mpi or launcher.is_openmpi):
        instead = "horovod-gloo" if spec.mpi else "ddp"
        raise JobgenError(
            "launcher-conflict",
            f"{pair}: the MPI there is not the images' Open MPI: `jobgen render {instead} {where}` needs none.",
        )


def _refuse_spec(spec: JobSpec, site: Site, scheduler: Scheduler, ranks: int, where: str, *, on_cpus: bool) -> None:
    """Refuse a spec that cannot be run at ``site``."""
    pair = f"{spec.name} at {site.name}"
    if scheduler.one_machine and (spec.nodes > 1 or spec.placement != "per-node" or spec.mpi):
        raise JobgenError(
            "no-scheduler", f"{spec.name} needs a scheduler, and site {site.name} is one machine: {_here(where)}"
        )
    if spec.task == "venv" and (site.venv in {"local", "modules"} or site.venv.startswith("conda:")):
        raise JobgenError(
            "nothing-to-build", f"{pair}: venv = {site.venv!r}: there is none to build; --set venv=.venv builds one."
        )
    if spec.task == "image" and not container_of(site.container).runs_sif:
        raise JobgenError(
            "nothing-to-build",
            f"{pair}: it builds a SIF, which {site.container} does not run: `podman build --tag slipway .` in a clone "
            f"builds the Dockerfile.",
        )
    if spec.backend == "single" and spec.nodes > 1:
        raise JobgenError("conflicting-settings", f"{spec.name}: backend 'single' is one process: add --set nodes=1.")
    each, there = spec.devices_per_rank, site.gpus_per_node
    needed = each * max(ranks, 1)
    if each > 1 and needed > there and not (on_cpus or scheduler.one_machine):
        raise JobgenError(
            "too-few-gpus",
            f"{pair}: {max(ranks, 1)} rank(s) with {each} GPUs each (devices_per_rank) need {needed} GPUs of a node, "
            f"and the nodes there have {there} (gpus_per_node): lower one of the two, as by "
            f"--set devices_per_rank=N, or take another site.",
        )
    if ranks * spec.nodes > 1 and not on_cpus and re.search(MIG_PROFILE, site.gpu_type, flags=re.ASCII):
        raise JobgenError(
            "mig-slices",
            f"{pair}: gpu_type = {site.gpu_type!r} is a MIG slice, and NCCL cannot connect ranks on slices: "
            f"`jobgen render single {where}` takes one.",
        )
    if ranks < 1 and there:
        raise JobgenError(
            "too-few-gpus",
            f"{pair}: a rank takes {each} devices (devices_per_rank), and gpus_per_node is {there}: add "
            f"--set ranks_per_node=N.",
        )
    if ranks < 1:
        raise JobgenError("no-gpu", f"{pair}: the site has no GPUs (gpus_per_node = 0): add --set ranks_per_node=N.")
    early = scheduler.early_seconds
    if not scheduler.one_machine and spec.task in TRAINS and spec.minutes * 60 <= spec.save_seconds + early:
        raise JobgenError(
            "time-too-short",
            f"{pair}: minutes = {spec.minutes} is no longer than the lead of the warning, save_seconds = "
            f"{spec.save_seconds} and {early} s more: add --set minutes=N.",
        )

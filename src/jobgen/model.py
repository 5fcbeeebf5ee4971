"""What a job is: WHERE it runs (Site), WHAT runs (JobSpec), and both resolved into one Job without a None in it."""

from __future__ import annotations

from typing import Dict, List, Literal, Tuple, Union

import msgspec

from jobgen.errors import JobgenError

Option = Union[str, int, bool]
"""A scheduler option's value: text, a number, true (given without a value) or false (dropped)."""


NATURAL = {"slurm": "srun", "pbs": "ssh", "local": "local"}
"""The launcher where neither the spec nor the site names one."""
BUILDS = ("venv", "image")
"""Tasks that build, on one node, what other jobs run in."""
EARLY_SECONDS = 60
"""By which Slurm may send its warning too early (sbatch(1), --signal)."""


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster or a machine."""

    name: str
    """How the site is called, for people."""
    scheduler: Literal["slurm", "pbs", "local"] = "slurm"
    """Who starts the script."""
    pbs: Literal["openpbs", "torque"] = "openpbs"
    """Which PBS: by whose words it is asked for nodes."""
    launcher: Literal["", "srun", "mpirun", "ssh"] = ""
    """What starts processes on the nodes of a job; "": srun under Slurm, ssh under PBS."""
    remote_shell: str = "ssh -o BatchMode=yes -o ConnectTimeout=20"
    """What the launcher "ssh" puts before a node's name and ``bash``, split into words as by a shell, and nothing more;
    ``srun --nodes=1 --nodelist`` does, too."""
    mpi: Literal["openmpi", "other"] = "openmpi"
    """The family of the nodes' MPI. Only Open MPI starts ranks of the images, whose MPI is Open MPI."""
    container: Literal["apptainer", "none"] = "apptainer"
    """What USE_CONTAINER=1 uses; "none": the default is USE_CONTAINER=0."""
    venv: Literal["shared", "local"] = "shared"
    """Where USE_CONTAINER=0 finds its virtual environment: as VENV on a shared disk, or built on the local disk of each
    node at each start."""
    accelerator: Literal["nvidia", "amd", "none"] = "nvidia"
    """Which GPUs the image is given: ``--nv``, ``--rocm`` or nothing."""
    gpus_per_node: int = 1
    """GPUs of a node: a job's ranks per node, unless its description says otherwise."""
    cpus_per_gpu: int = 4
    """CPU cores for each rank: its threads and its data loaders."""
    gpu_per_task: bool = False
    """Whether ranks that Slurm starts are each bound to a GPU of their own, where the site wants it so."""
    resume: Literal["requeue", "chain", "none"] = "requeue"
    """What follows a time limit: the script requeues its job, submits the next, or only says how to continue."""
    numa_binding: Literal["", "node", "socket", "exclusive", "core-complex"] = ""
    """torchrun's --numa-binding: ranks on the cores next to their GPU; "": no binding. Needs torch 2.13 and GPUs."""
    modules: Tuple[str, ...] = ()
    """Environment modules to load."""
    purge_modules: bool = True
    """Whether ``module purge`` comes first; not where Slurm's own commands are a module."""
    node_properties: Tuple[str, ...] = ()
    """PBS: what nodes must have besides: Torque's properties (v100), OpenPBS's resources (gputype=v100)."""
    group_readable: bool = False
    """Whether the group may read run folders."""
    binds: Tuple[str, ...] = ()
    """Folders that the container needs besides those of the job, at the same path inside."""
    local_disk: str = "/tmp"  # noqa: S108 -- a folder of the node; the script makes one of its own below it
    """Local disk of a node, for STAGE=1 and caches; shell variables in it are expanded on the node."""
    options: Dict[str, Option] = {}
    """Options of the scheduler by their own long names; false drops one that jobgen would give."""
    cpu_options: Dict[str, Option] = {}
    """The same, for jobs without GPUs only."""
    directives: Tuple[str, ...] = ()
    """Any other directive, as it stands behind ``#SBATCH`` or ``#PBS``."""
    env: Dict[str, str] = {}
    """Variables that every rank needs here: fabric, proxies. Ones set outside win."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of job."""

    name: str
    """Name of the job, its log and its run folder."""
    about: str
    """One line for the script's header: what starts what; {launcher} is the name of the launcher."""
    backend: Literal["ddp", "horovod", "single"] = "ddp"
    """How ranks train together."""
    task: Literal["train", "selftest", "venv", "image"] = "train"
    """What the job does: train; test its own nodes; build a virtual environment, or the image, on a node."""
    mpi: bool = False
    """Whether Horovod's ranks find each other by MPI, or at Horovod's rendezvous server on the head node."""
    placement: Literal["per-node", "per-rank"] = "per-node"
    """Whether torchrun is started on each node, or each rank by itself, as Horovod's always are."""
    launcher: Literal["", "srun", "mpirun", "ssh"] = ""
    """What starts processes on the nodes; "": what the site says."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """SLIPWAY_DEVICE's default; with cpu no GPU is asked for."""
    config: str = "configs/digits.toml"
    """SLIPWAY_CONFIG's default."""
    nodes: int = 1
    """Nodes of the job."""
    ranks_per_node: int = 0
    """Ranks of a node; 0: one for each GPU that the job is given."""
    minutes: int = 60
    """Time limit of one attempt."""
    save_seconds: int = 120
    """How long a save may take: from the warning to the checkpoint on disk."""
    max_requeues: int = 10
    """How often a job may requeue itself."""
    options: Dict[str, Option] = {}
    """Options of the scheduler for this kind of job; they win over the site's."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A JobSpec at a Site: what ``render`` turns into text."""

    site: Site
    spec: JobSpec
    launcher: str
    """What starts the ranks, or their torchruns: srun, mpirun, ssh, or local on one machine."""
    steps: str
    """What starts a step of the script on each node: the site's own way, whatever starts the ranks."""
    per_rank: bool
    """Whether each rank is started by itself."""
    ranks_per_node: int
    cpus_per_node: int
    gpus_per_node: int
    """0: the job asks for none."""
    options: Dict[str, Option]
    """The site's and the job's own options, the latter winning; false ones included."""
    origin: Tuple[str, ...]
    """The words of the command that makes the script."""


def resolve(spec: JobSpec, site: Site, *, origin: List[str]) -> Job:
    """Return what ``spec`` means at ``site``.

    Raises:
        JobgenError: if the two contradict each other.
    """
    on_cpus, alone = spec.device == "cpu" or site.accelerator == "none", spec.backend == "single"
    ranks = 1 if alone else spec.ranks_per_node or site.gpus_per_node
    steps = site.launcher or NATURAL[site.scheduler]
    launcher = spec.launcher or steps
    _refuse(spec, site, launcher, ranks)
    return Job(
        site=site,
        spec=spec,
        launcher=launcher,
        steps=steps,
        per_rank=spec.placement == "per-rank" or spec.backend == "horovod",
        ranks_per_node=ranks,
        cpus_per_node=ranks * site.cpus_per_gpu,
        gpus_per_node=0 if on_cpus else (1 if alone else site.gpus_per_node),
        options={**site.options, **(site.cpu_options if on_cpus else {}), **spec.options},
        origin=tuple(origin),
    )


def _refuse(spec: JobSpec, site: Site, launcher: str, ranks: int) -> None:
    """Raise a JobgenError that names the way out, if ``spec`` cannot be run at ``site``."""
    _refuse_site(site)
    _refuse_launcher(spec, site, launcher)
    pair = f"{spec.name} at {site.name}"
    if site.scheduler == "local" and (spec.nodes > 1 or spec.placement == "per-rank" or spec.mpi):
        raise JobgenError(
            f"{spec.name} needs a scheduler, and site {site.name} is one machine: "
            f"`jobgen render ddp-local --site {site.name}` trains there."
        )
    if spec.backend == "single" and spec.nodes > 1:
        raise JobgenError(f"{spec.name}: backend 'single' is one process: nodes must be 1.")
    for name, value in (("nodes", spec.nodes), ("minutes", spec.minutes), ("ranks per node", ranks)):
        if value < 1:
            raise JobgenError(f"{pair}: {name} is {value} and must be at least 1.")
    early = 2 * EARLY_SECONDS if site.scheduler == "slurm" else 0
    if site.scheduler != "local" and spec.task not in BUILDS and spec.minutes * 60 <= spec.save_seconds + early:
        raise JobgenError(
            f"{pair}: minutes = {spec.minutes} is no longer than the lead of the warning, save_seconds = "
            f"{spec.save_seconds} and {early} s more: raise minutes."
        )


def _refuse_site(site: Site) -> None:
    """Refuse a site that contradicts itself."""
    if site.resume == "chain" and site.scheduler != "pbs":
        raise JobgenError(f"site {site.name}: resume = 'chain' is for PBS; Slurm lets a job requeue itself.")
    if site.node_properties and site.scheduler != "pbs":
        raise JobgenError(f"site {site.name}: node_properties are for PBS; with Slurm use options.constraint.")


def _refuse_launcher(spec: JobSpec, site: Site, launcher: str) -> None:
    """Refuse a launcher that the site does not have, or that cannot start these ranks."""
    pair = f"{spec.name} at {site.name}"
    if launcher == "srun" and site.scheduler != "slurm":
        raise JobgenError(f"{pair}: srun is Slurm's: let it be started by mpirun or ssh (launcher).")
    if spec.mpi and launcher == "ssh":
        raise JobgenError(f"{pair}: ssh starts no MPI: render horovod-gloo, or set launcher = 'mpirun'.")
    if site.mpi == "other" and (spec.mpi or launcher == "mpirun"):
        instead = "horovod-gloo" if spec.mpi else "ddp"
        raise JobgenError(f"{pair}: the MPI there is not the images' Open MPI: render {instead}, which needs none.")

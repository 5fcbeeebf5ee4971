"""What a job is: WHERE it runs (Site), WHAT runs (JobSpec), and both in one Job (``jobgen.resolve.resolve``)."""

from __future__ import annotations

from typing import Dict, Literal, Tuple, Union

import msgspec

Option = Union[str, int, bool]
"""A scheduler option's value: text, a number, true (given without a value) or false (dropped)."""

BUILDS = ("venv", "image")
"""Tasks that build, on one node, what other jobs run in."""
TRAINS = ("train", "selftest")
"""Tasks that run the trainer."""


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster or a machine."""

    name: str
    """How the site is called, for people."""
    scheduler: str = "slurm"
    """What starts the script: a module of ``jobgen.schedulers``."""
    pbs: Literal["openpbs", "torque"] = "openpbs"
    """Which PBS: by whose words it is asked for nodes."""
    launcher: str = ""
    """What starts processes on the nodes of a job, a module of ``jobgen.launchers``; "": srun under Slurm, ssh under
    PBS."""
    remote_shell: str = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ControlPath=none"
    """What the launcher "ssh" puts before a node's name and ``bash``, split into words as by a shell, and nothing more;
    ``srun --nodes=1 --nodelist`` does, too."""
    mpirun_options: Tuple[str, ...] = ()
    """Further options of mpirun, a word each: of every step that it starts."""
    mpi: Literal["openmpi", "other"] = "openmpi"
    """The family of the nodes' MPI. Only Open MPI starts ranks of the images, whose MPI is Open MPI."""
    container: str = "apptainer"
    """What USE_CONTAINER=1 runs the image by, a module of ``jobgen.runtimes``; "none": the default is
    USE_CONTAINER=0."""
    image: str = "slipway.sif"
    """SLIPWAY_IMAGE's default: one image for all users, or a file in the folder of submission. In this path and the
    next three, variables are expanded where the job runs."""
    venv: str = ".venv"
    """SLIPWAY_VENV's default: a virtual environment, or conda's; "local": built on the local disk of each node at each
    start; "modules": the Python of the site's ``modules``; "conda:NAME": the environment of that name."""
    output: str = "runs"
    """SLIPWAY_OUTPUT's default: where run folders are made."""
    data: str = ""
    """SLIPWAY_DATA's default."""
    notify: str = ""
    """SLIPWAY_NOTIFY's default: a program on the nodes; variables are expanded as above."""
    accelerator: Literal["nvidia", "amd", "none"] = "nvidia"
    """Which GPUs the image is given: ``--nv``, ``--rocm`` or nothing."""
    gpus_per_node: int = 1
    """GPUs of a node: what a job asks for, and by the GPUs of each rank its ranks per node."""
    gpu_request: Literal["gpus-per-node", "gres", "gpus-per-task"] = "gpus-per-node"
    """By which option Slurm is asked for GPUs. "gres": it was built or configured without ``cons_tres``."""
    gpu_type: str = ""
    """The GPUs' type, as Slurm calls it (a100); "": any."""
    bind_gpus: bool = False
    """Whether ranks that Slurm starts each see GPUs of their own alone, where the site wants it so."""
    cpus_per_gpu: int = 4
    """CPU cores for each GPU: threads and data loaders of the rank that it belongs to."""
    mem: str = ""
    """Memory that a job with all GPUs of a node asks for on each node, as 480G; other jobs ask for their share; "": the
    scheduler's default."""
    resume: Literal["requeue", "chain", "none"] = "requeue"
    """What follows a time limit: the script requeues its job, submits the next, or only says how to continue."""
    numa_binding: Literal["", "node", "socket", "exclusive", "core-complex"] = ""
    """torchrun's --numa-binding: ranks on the cores next to their GPU. Needs torch 2.9, GPUs and numactl; "": none."""
    modules: Tuple[str, ...] = ()
    """Environment modules to load."""
    path: Tuple[str, ...] = ()
    """Folders of programs that stand before PATH on the nodes, as the container runtime's where no module brings it."""
    purge_modules: bool = True
    """Whether ``module purge`` comes first; not where Slurm's own commands are a module."""
    node_properties: Tuple[str, ...] = ()
    """PBS: what nodes must have besides: Torque's properties (v100), OpenPBS's resources (gputype=v100)."""
    group_readable: bool = False
    """Whether the group may read run folders."""
    downloads: bool = False
    """Whether each node of a job may download what SLIPWAY_VENV=local installs, where no SLIPWAY_WHEELHOUSE is set."""
    binds: Tuple[str, ...] = ()
    """Folders that the container needs besides those of the job, at the same path inside."""
    container_options: Tuple[str, ...] = ()
    """Further options of the container runtime, a word each."""
    interface: str = ""
    """Network interface of the nodes by which Dask reaches its workers, and their ranks each other (ib0); "": by the
    route."""
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
    task: Literal["train", "selftest", "venv", "image", "shell"] = "train"
    """What the job does: train; test its own nodes; build a virtual environment, or the image, on a node; run a shell
    there (``jobgen shell``)."""
    mpi: bool = False
    """Whether Horovod's ranks find each other by MPI, or at Horovod's rendezvous server on the head node."""
    placement: Literal["per-node", "per-rank", "node-by-node"] = "per-node"
    """One command starts a torchrun on each node, or each rank by itself, as Horovod's always are; or a loop over the
    nodes gives each a command of its own, with its number in NODE_RANK, which starts torchrun or the ranks there."""
    launcher: str = ""
    """What starts processes on the nodes; "": what the site says."""
    client: Literal["", "dask"] = ""
    """What gets the nodes where the script is not itself the scheduler's job, but a client that asks for them: a module
    of ``jobgen.schedulers``."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """SLIPWAY_DEVICE's default; with cpu no GPU is asked for."""
    config: str = "configs/digits.toml"
    """SLIPWAY_CONFIG's default."""
    nodes: int = 1
    """Nodes of the job; of a client SLIPWAY_NODES's default."""
    ranks_per_node: int = 0
    """Ranks of a node; 0: as many as the GPUs that the job is given are enough for."""
    devices_per_rank: int = 1
    """GPUs of each rank. A job asks for the GPUs of its ranks alone."""
    minutes: int = 60
    """Time limit of one attempt."""
    save_seconds: int = 120
    """How long a save may take: from the warning to the checkpoint on disk."""
    max_requeues: int = 10
    """How often a job may requeue itself."""
    max_restarts: int = 3
    """How often a job starts its ranks again after a rank, a launcher or a node has died."""
    spares: int = 0
    """Nodes that a job asks for besides ``nodes``: they wait to replace lost ones."""
    shrink: bool = False
    """Whether a job goes on with fewer nodes where too few are left."""
    options: Dict[str, Option] = {}
    """Options of the scheduler for this kind of job; they win over the site's."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A JobSpec at a Site: what ``render`` turns into text."""

    site: Site
    spec: JobSpec
    scheduler: str
    """What starts the script: the site's scheduler, or the spec's client."""
    launcher: str
    """What starts the ranks, or their torchruns: srun, mpirun, ssh, dask, or local on one machine."""
    steps: str
    """What starts a step of the script on each node: the site's own way, whatever starts the ranks."""
    resume: str
    """What follows a time limit, as in Site; of a client "restart": it asks for nodes again."""
    per_rank: bool
    """Whether each rank is a task of its own for the scheduler."""
    ranks_per_node: int
    gpus_per_node: int
    """0: the job asks for none."""
    cpus_per_node: int
    """``cpus_per_gpu`` for each of these GPUs; without GPUs for each rank."""
    mem_per_node: int
    """In MiB; 0: the job does not ask for any."""
    options: Dict[str, Option]
    """The site's and the job's own options, the latter winning; false ones included."""
    origin: Tuple[str, ...]
    """The words of the command that makes the script."""

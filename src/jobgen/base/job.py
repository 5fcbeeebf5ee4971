"""Data model of jobs: Site (where), JobSpec (what), and Job, both combined by ``jobgen.resolve.resolve``."""

from __future__ import annotations

from typing import Dict, Literal, Tuple, Union

import msgspec

Option = Union[str, int, bool]
"""Value of a scheduler option: text, a number, true (option without value) or false (option dropped)."""

BUILDS = {"venv": "build/setup", "image": "build/image"}
"""Tasks that build the virtual environment or the image of other jobs, on one node; the program in a clone that each
runs."""
TABLES = ("options", "cpu_options", "env")
"""Fields of a site or a spec that are tables."""
TRAINS = ("train", "selftest")
"""Tasks that run a training program."""


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster or a machine."""

    name: str
    """Name of the site in messages."""
    scheduler: str = "slurm"
    """Scheduler of the job scripts: a module of ``jobgen.schedulers``."""
    pbs: Literal["openpbs", "torque"] = "openpbs"
    """PBS variant, which determines the syntax of node requests."""
    launcher: str = ""
    """Program that starts processes on a job's nodes, a module of ``jobgen.launchers``; "": srun under Slurm, ssh under
    PBS."""
    remote_shell: str = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ControlPath=none"
    """Command that the launcher "ssh" puts before a node's name and ``bash``. It is split into words as by a shell,
    without expansions; ``srun --nodes=1 --nodelist`` works too."""
    mpirun_options: Tuple[str, ...] = ()
    """Additional options of each mpirun, one word each."""
    mpi: Literal["openmpi", "other"] = "openmpi"
    """MPI of the nodes. Only Open MPI can start ranks in the images, which contain Open MPI."""
    container: str = "apptainer"
    """Runtime of the image with USE_CONTAINER=1, a module of ``jobgen.runtimes``; "none": USE_CONTAINER defaults
    to 0."""
    image: str = "slipway.sif"
    """Default of SLIPWAY_IMAGE: a shared image, or a file in the folder of submission. In this path and the next three,
    variables are expanded where the job runs."""
    venv: str = ".venv"
    """Default of SLIPWAY_VENV: a virtual or conda environment; "local": built on each node's local disk at each start;
    "modules": the Python of the site's ``modules``; "conda:NAME": the environment of that name."""
    output: str = "runs"
    """Default of SLIPWAY_OUTPUT, the folder of run folders."""
    data: str = ""
    """Default of SLIPWAY_DATA."""
    notify: str = ""
    """Default of SLIPWAY_NOTIFY: a program on the nodes; variables are expanded as above."""
    accelerator: Literal["nvidia", "amd", "none"] = "nvidia"
    """GPUs that the container gets: ``--nv``, ``--rocm`` or nothing."""
    gpus_per_node: int = 1
    """GPUs of a node. A job requests them, and starts one rank for each ``devices_per_rank`` of them."""
    gpu_request: Literal["gpus-per-node", "gres", "gpus-per-task"] = "gpus-per-node"
    """Slurm option that requests GPUs. "gres" is for a Slurm without ``cons_tres``."""
    gpu_type: str = ""
    """Slurm's name of the GPU type (a100); "": any."""
    bind_gpus: bool = False
    """Whether each rank that Slurm starts sees only its own GPUs, if the site requires that."""
    cpus_per_gpu: int = 4
    """CPU cores per GPU, for threads and data loaders of its rank."""
    mem: str = ""
    """Memory per node, such as 480G, that a job with all GPUs of a node requests; other jobs request their share; "":
    the scheduler's default."""
    resume: Literal["", "requeue", "chain", "none"] = ""
    """Action after a time limit: the script requeues its job, submits the next job, or only prints how to continue; "":
    requeue under Slurm, chain under PBS."""
    numa_binding: Literal["", "node", "socket", "exclusive", "core-complex"] = ""
    """torchrun's --numa-binding: ranks on the cores next to their GPU. Needs torch 2.9, GPUs and numactl; "": none."""
    modules: Tuple[str, ...] = ()
    """Environment modules to load."""
    path: Tuple[str, ...] = ()
    """Folders to prepend to PATH on the nodes, such as the container runtime's if no module provides it."""
    purge_modules: bool = True
    """Whether ``module purge`` runs first; set false if Slurm's commands are a module."""
    node_properties: Tuple[str, ...] = ()
    """PBS: additional requirements of nodes: Torque properties (v100), OpenPBS resources (gputype=v100)."""
    group_readable: bool = False
    """Whether the group may read run folders."""
    downloads: bool = False
    """Whether each node may download the packages of SLIPWAY_VENV=local if SLIPWAY_WHEELHOUSE is not set."""
    binds: Tuple[str, ...] = ()
    """Additional folders in the container, mounted at the same path."""
    container_options: Tuple[str, ...] = ()
    """Additional options of the container runtime, one word each."""
    interface: str = ""
    """Network interface of the nodes for Dask's connections to its workers and between their ranks (ib0); "": by the
    route."""
    local_disk: str = "/tmp"  # noqa: S108 -- a folder on the node; the script creates a private folder below it
    """Local disk of a node, for STAGE=1 and caches; shell variables in it are expanded on the node."""
    shared: Tuple[str, ...] = ()
    """Folders of the login node that all nodes share, although they look like its own: /tmp, or a disk that it exports;
    "/": all."""
    options: Dict[str, Option] = {}
    """Scheduler options by their long names; false drops an option of jobgen."""
    cpu_options: Dict[str, Option] = {}
    """Scheduler options only for jobs without GPUs."""
    directives: Tuple[str, ...] = ()
    """Other directives, verbatim after ``#SBATCH`` or ``#PBS``."""
    env: Dict[str, str] = {}
    """Variables for each rank at this site: fabric, proxies. Values set outside take precedence."""


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of job, independent of the site."""

    name: str
    """Name of the job, its log and its run folder."""
    about: str
    """One line for the script's header on how the ranks start; {launcher} is replaced by the launcher's name."""
    backend: Literal["ddp", "horovod", "single"] = "ddp"
    """Backend of distributed training."""
    task: Literal["train", "selftest", "venv", "image", "shell"] = "train"
    """Task of the job: train; test its nodes; build a virtual environment or the image on a node; run a shell on a node
    (``jobgen shell``)."""
    mpi: bool = False
    """Whether Horovod's ranks connect through MPI; if not, through Horovod's rendezvous server on the first node."""
    placement: Literal["per-node", "per-rank", "node-by-node"] = "per-node"
    """per-node: one command starts torchrun on each node; Horovod uses per-rank instead. per-rank: one command starts
    each rank. node-by-node: a loop starts a separate command per node, which gets its number in NODE_RANK and starts
    torchrun or the ranks."""
    launcher: str = ""
    """Launcher of the ranks; "": the site's."""
    client: Literal["", "dask"] = ""
    """Client that requests the nodes if the script is not itself a job of the scheduler: a module of
    ``jobgen.schedulers``; "": none."""
    device: Literal["auto", "cuda", "cpu"] = "auto"
    """Default of SLIPWAY_DEVICE; with "cpu" the job requests no GPUs."""
    config: str = "configs/digits.toml"
    """Default of SLIPWAY_CONFIG."""
    nodes: int = 1
    """Number of nodes of the job; for a client, the default value of SLIPWAY_NODES."""
    ranks_per_node: int = 0
    """Ranks per node; 0: one for each ``devices_per_rank`` of the job's GPUs."""
    devices_per_rank: int = 1
    """GPUs per rank. A job requests only the GPUs of its ranks."""
    minutes: int = 60
    """Time limit of one attempt."""
    mem_per_node: str = ""
    """Memory per node, such as 64G; "": a share of the site's ``mem``."""
    save_seconds: int = 120
    """Maximum duration of a save in seconds, from the warning to the checkpoint on disk."""
    max_requeues: int = 10
    """Maximum number of times that a job requeues itself."""
    max_restarts: int = 3
    """Maximum restarts of the ranks within a job after the death of a rank, a launcher or a node."""
    spares: int = 0
    """Spare nodes that a job requests in addition to ``nodes``, to replace lost ones."""
    shrink: bool = False
    """Whether a job continues with fewer nodes if too few remain."""
    options: Dict[str, Option] = {}
    """Scheduler options for this kind of job; they take precedence over the site's."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A JobSpec resolved at a Site: the input of ``jobgen.render``."""

    site: Site
    spec: JobSpec
    scheduler: str
    """Name of the site's scheduler or the spec's client, which starts the script."""
    launcher: str
    """Launcher of the ranks or of torchrun: srun, mpirun, ssh, dask, or local on one machine."""
    steps: str
    """Launcher of the script's own steps on each node: the site's, independent of the ranks' launcher."""
    resume: str
    """Action after a time limit, as in Site; for a client "restart": it requests nodes again."""
    per_rank: bool
    """Whether each rank is a separate task of the scheduler."""
    ranks_per_node: int
    gpus_per_node: int
    """0: the job requests no GPUs."""
    cpus_per_node: int
    """``cpus_per_gpu`` times the GPUs; without GPUs, times the devices of the ranks."""
    mem_per_node: int
    """In MiB; 0: the job requests no memory."""
    options: Dict[str, Option]
    """Options of site and spec, false ones included; the spec's take precedence."""
    origin: Tuple[str, ...]
    """Words of the command that renders the script."""

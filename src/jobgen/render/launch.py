"""Launch command of a script: launcher, container, torchrun or Python, program."""

from __future__ import annotations

from typing import Dict, List

from jobgen.base.job import Job
from jobgen.base.shell import Expansion, Layer, array, option, wrapped
from jobgen.launchers import launcher_of
from jobgen.runtimes import IN_CONTAINER, container_of

PROGRAM: Layer = [array("program")]
PYTHON: Layer = ["python3", *PROGRAM]

WATCH_GPUS: Layer = ["sh", Expansion('"$lib/watch_gpus.sh"'), Expansion('"$SLIPWAY_DEVICE"')]
"""Samples the GPUs' utilization while the ranks run."""

COMMENTS: Dict[str, str] = {
    "torchrun": "launcher; on each node container, torchrun, ranks.",
    "named": "launcher; a container per rank, numbered by name_rank.sh.",
    "mpi": "launcher; a container per rank, numbered by MPI.",
    "single": "container; one process.",
}


def backends(job: Job) -> List[str]:
    """Return the backends that the job's script can launch; the first is the default.

    Horovod over MPI needs the allocation and the checks of its own script; a single process is not parallel; a
    client is on none of the nodes, where Horovod's rendezvous server would have to be.
    """
    own = job.spec.backend
    if own == "single" or job.spec.mpi or job.spec.client:
        return [own]
    return ["ddp", "horovod"] if own == "ddp" else ["horovod", "ddp"]


def starts_torchrun(job: Job) -> bool:
    """Return whether torchrun starts ranks of the job, in one of its backends."""
    return any(_way(job, name) == "torchrun" for name in backends(job))


def bound_backends(job: Job) -> List[str]:
    """Return the backends whose ranks see only their own GPUs."""
    binds = launcher_of(job.launcher).binds_gpus(job)
    return [name for name in backends(job) if binds and _way(job, name) in {"named", "mpi"}]


def launches(job: Job) -> str:
    """Return the Bash functions ``launch_BACKEND``, which ``run_launch`` calls."""
    return "\n\n".join(_function(job, backend) for backend in backends(job))


def _function(job: Job, backend: str) -> str:
    way = _way(job, backend)
    launcher = launcher_of(job.launcher)
    if way == "torchrun":
        start, inside = launcher.one_per_node(job), [_torchrun(job), PROGRAM]
    elif way == "single":
        start, inside = launcher.one_per_node(job), [PYTHON]
    else:
        start, inside = launcher.one_per_rank(job, named=way == "named"), [PYTHON]
    is_launchers = bool(container_of(job.site.container).launcher_of_container)
    naming = [IN_CONTAINER, *start.naming] if is_launchers else [*start.naming, IN_CONTAINER]
    watched = job.site.accelerator == "nvidia" and job.spec.device != "cpu"
    layers = [*start.launch, *naming, *([WATCH_GPUS] if watched else []), *inside]
    return "\n".join(
        [
            f"# BACKEND={backend}, outermost first: {COMMENTS[way]}",
            f"launch_{backend}() {{",
            *(f"    {line}" for line in launcher.setup),
            wrapped(layers, indent=4),
            "}",
        ]
    )


def _way(job: Job, backend: str) -> str:
    """Return what starts the ranks: torchrun, a launcher that numbers them (named), MPI, or single for one process."""
    if backend == "single":
        return "single"
    if backend == "horovod":
        return "mpi" if job.spec.mpi else "named"
    return "named" if job.spec.placement == "per-rank" else "torchrun"


def _torchrun(job: Job) -> Layer:
    """Return the torchrun command of one node.

    Its rendezvous is static: the node of number 0, which is the head node, keeps the store. So nothing has to find out
    by comparing host names which node that is, and the order of ranks is that of the nodes.
    """
    numa: Layer = [array("numa_options")] if job.site.numa_binding else []
    return [
        "torchrun",
        option("--nnodes", "nnodes"),
        option("--nproc-per-node", "ranks_per_node"),
        *numa,
        option("--master-addr", "MASTER_ADDR"),
        option("--master-port", "MASTER_PORT"),
        option("--rdzv-id", "launch_id"),  # of no other run in this job
        option("--log-dir", "scratch/torchrun"),  # else it leaves a folder in /tmp of every node
    ]

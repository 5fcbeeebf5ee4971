"""Compose the layers of a launch, outermost first: placement, container, process launcher, payload."""

from __future__ import annotations

from typing import List

from jobgen.model import Job
from jobgen.placement import each_node, one_per_node, one_per_rank
from jobgen.words import Expansion, Word, array, variable

Layer = List[Word]

CONTAINER: Layer = [array("container")]
PAYLOAD: Layer = [array("payload")]


def layers(job: Job) -> List[Layer]:
    """Return the layers that the launch starts."""
    if job.spec.backend == "single":
        return [[array("per_node"), *CONTAINER], ["python", *PAYLOAD]]
    if job.per_rank:
        return [*one_per_rank(job), [*CONTAINER, "python", *PAYLOAD]]
    return [[*each_node(job), *CONTAINER], _torchrun(job), PAYLOAD]


def meeting(job: Job) -> str:
    """Return how the ranks find each other: the folder of templates that see to it."""
    if job.spec.backend == "horovod":
        return "mpi" if job.spec.mpi else "gloo"
    return "alone" if job.spec.backend == "single" else "store"


def per_node(job: Job) -> Layer:
    """Return what ``per_node`` holds: how a step gets onto every node once."""
    return one_per_node(job, job.steps)


def _torchrun(job: Job) -> Layer:
    """Return torchrun for one node; all of them meet at the head node.

    A remote shell tells each its number (PET_NODE_RANK), so that nobody has to find out by name which one is the head.
    """
    return [
        "torchrun",
        variable("nnodes", option="--nnodes"),
        variable("RANKS_PER_NODE", option="--nproc-per-node"),
        variable("job_id", option="--rdzv-id"),
        "--rdzv-backend=" + ("static" if job.launcher == "ssh" else "c10d"),
        Expansion('--rdzv-endpoint="${nodes[0]}:$MASTER_PORT"'),
    ]

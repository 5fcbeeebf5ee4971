"""Compose the layers of a launch, outermost first: placement, container, process launcher, payload."""

from __future__ import annotations

from typing import List, Tuple

from jobgen.model import Job
from jobgen.placement import one_per_node, one_per_rank
from jobgen.words import Expansion, Word, array, variable

Layer = List[Word]

CONTAINER: Layer = [array("container")]
PAYLOAD: Layer = [array("payload")]


def layers(job: Job) -> Tuple[str, List[Layer]]:
    """Return the template of the launch, and the layers that it starts."""
    if job.spec.backend == "single":
        return "alone", [[array("per_node"), *CONTAINER], ["python", *PAYLOAD]]
    if job.spec.placement == "per-rank":
        return "meeting", [one_per_rank(), [*CONTAINER, "python", *PAYLOAD]]
    return "meeting", [[array("per_node"), *CONTAINER], _torchrun(), PAYLOAD]


def per_node(job: Job) -> Layer:
    """Return what ``per_node`` holds: how a step gets onto every node once."""
    return one_per_node(job)


def _torchrun() -> Layer:
    """Return torchrun for one node; all of them meet at the head node."""
    return [
        "torchrun",
        variable("nnodes", option="--nnodes"),
        variable("RANKS_PER_NODE", option="--nproc-per-node"),
        variable("job_id", option="--rdzv-id"),
        "--rdzv-backend=c10d",
        Expansion('--rdzv-endpoint="${nodes[0]}:$MASTER_PORT"'),
    ]

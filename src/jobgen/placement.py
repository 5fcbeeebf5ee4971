"""How processes get onto nodes: the words in front of a command, for one copy a node or one a rank."""

from __future__ import annotations

from typing import List

from jobgen.model import Job
from jobgen.schedulers.slurm import RANK_OF_TASK
from jobgen.words import Word, variable

SRUN: List[Word] = [
    variable("cpus", option="--cpus-per-task"),  # since 22.05 srun does not inherit it
    "--export=ALL",  # sbatch --export=... would hold for steps too
    "--kill-on-bad-exit=1",
]


def one_per_node(job: Job) -> List[Word]:
    """Return the words that run a command once on each node of the job."""
    if job.site.scheduler == "local":
        return []
    nodes = variable("nnodes", option="--nodes"), variable("nnodes", option="--ntasks")
    return ["srun", *nodes, "--ntasks-per-node=1", *SRUN]


def one_per_rank() -> List[Word]:
    """Return the words that run a command once for each rank, told by RANK and its like which one it is.

    ``--gpu-bind=none``: a rank that sees only its own GPU cannot reach its neighbours' directly.
    """
    tasks = variable("TRAINER_WORLD_SIZE", option="--ntasks"), variable("RANKS_PER_NODE", option="--ntasks-per-node")
    named = "bash", "-c", f'{RANK_OF_TASK} exec "$@"', "rank"
    return ["srun", variable("nnodes", option="--nodes"), *tasks, *SRUN, "--gpu-bind=none", *named]

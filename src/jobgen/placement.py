"""How processes get onto nodes: the words in front of a command, for one copy a node or one a rank."""

from __future__ import annotations

from typing import List

from jobgen.model import Job
from jobgen.schedulers import scheduler_of
from jobgen.schedulers.slurm import RANK_OF_TASK
from jobgen.skeletons import fill
from jobgen.words import Expansion, Word, array, one_line, variable

RANK_OF_PROCESS = (
    "RANK=$OMPI_COMM_WORLD_RANK LOCAL_RANK=$OMPI_COMM_WORLD_LOCAL_RANK "
    "WORLD_SIZE=$OMPI_COMM_WORLD_SIZE LOCAL_WORLD_SIZE=$OMPI_COMM_WORLD_LOCAL_SIZE"
)
"""What a process that Open MPI's mpirun starts is called by torch."""
NODE_OF_RANK = "$((RANK / HOROVOD_LOCAL_SIZE))"
RANK_OF_HOROVOD = (
    "HOROVOD_RANK=$RANK HOROVOD_LOCAL_RANK=$LOCAL_RANK "
    f"HOROVOD_CROSS_RANK={NODE_OF_RANK} HOROVOD_HOSTNAME={NODE_OF_RANK} "
)
"""The same in the words of Horovod, to which a node is any name that its ranks share."""

SRUN: List[Word] = [
    variable("cpus", option="--cpus-per-task"),  # since 22.05 srun does not inherit it
    "--export=ALL",  # sbatch --export=... would hold for steps too
    "--kill-on-bad-exit=1",
]


def one_per_node(job: Job, launcher: str) -> List[Word]:
    """Return the words that run a command once on each node of the job."""
    if launcher == "srun":
        nodes = variable("nnodes", option="--nodes"), variable("nnodes", option="--ntasks")
        return ["srun", *nodes, "--ntasks-per-node=1", *SRUN]
    if launcher == "mpirun":
        return [*_mpirun(job), "--map-by", "ppr:1:node:OVERSUBSCRIBE"]
    if launcher == "ssh":
        return ["bash", "-c", _each_node(job), Expansion('"${nodes[*]}"')]
    return []


def each_node(job: Job) -> List[Word]:
    """Return the same for the launcher of the ranks, which mostly is that of all steps."""
    return [array("per_node")] if job.launcher == job.steps else one_per_node(job, job.launcher)


def one_per_rank(job: Job) -> List[List[Word]]:
    """Return the words that run a command once for each rank, and those that tell it by variables which one it is.

    Ranks that meet over MPI learn it there.
    """
    own = RANK_OF_HOROVOD if job.spec.backend == "horovod" else ""
    if job.launcher == "ssh":
        return [each_node(job), ["bash", "-c", _each_rank(own), variable("RANKS_PER_NODE")]]
    if job.launcher == "mpirun":
        ranks = Expansion('"ppr:$RANKS_PER_NODE:node:OVERSUBSCRIBE"')
        words, names = [*_mpirun(job), "--map-by", ranks], RANK_OF_PROCESS
    else:
        words, names = _srun(job), RANK_OF_TASK
    return [words] if job.spec.mpi else [words, ["bash", "-c", f'export {names}; {own}exec "$@"', "rank"]]


def _srun(job: Job) -> List[Word]:
    """Return srun for each rank.

    ``--gpu-bind=none``: a rank that sees only its own GPU cannot reach its neighbours' directly.
    """
    tasks = variable("TRAINER_WORLD_SIZE", option="--ntasks"), variable("RANKS_PER_NODE", option="--ntasks-per-node")
    gpus = "--gpus-per-task=1" if job.site.gpu_per_task else "--gpu-bind=none"
    mpi = ["--mpi=pmix"] if job.spec.mpi else []
    return ["srun", *mpi, variable("nnodes", option="--nodes"), *tasks, "--distribution=block", *SRUN, gpus]


def _mpirun(job: Job) -> List[Word]:
    """Return Open MPI's mpirun, 4 or 5.

    By its whole path, it finds its own parts on other nodes. It hands no variable over that it is not told by name, and
    binds each process to a core unless told otherwise, with all of its threads.
    """
    return ["bash", "-c", f'exec $DEAF "$(command -v mpirun)" --bind-to none {scheduler_of(job).mpirun} "$@"', "mpirun"]


def _each_node(job: Job) -> Expansion:
    """Return a loop of remote shells, which hand over neither environment nor signals. Its $0 is the list of nodes.

    Standard input is opened for reading and writing, so that it stays open as long as the remote shell of this side
    lives; when that is gone, however it went, the other side ends its command. Bash that finds SSH_CLIENT reads
    ~/.bashrc even for a command, and who knows what that does to PATH.
    """
    return Expansion(fill("ssh/nodes", {"remote_shell": one_line(job.site.remote_shell)}))


def _each_rank(names: str) -> Expansion:
    """Return a loop that starts the ranks of a node, where nothing else does. Its $0 is their number."""
    return Expansion(fill("ssh/ranks", {"names": names}))

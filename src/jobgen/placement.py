"""How processes get onto nodes: what stands before a command, for one copy a node or one a rank.

Each launcher is a class; ``PLACEMENTS`` names them all. A new one is a file of functions in ``jobscripts/lib`` (for
``<name>_each_node``) and a class here.
"""

from __future__ import annotations

from typing import Dict, List, Protocol, Tuple

from jobgen.model import Job
from jobgen.shell import Expansion, Layer, array, option

NAME_NODE = Expansion('"$lib/name_node.sh"')
NAME_RANK = Expansion('"$lib/name_rank.sh"')
RANK_LOOP = Expansion('"$lib/rank_loop.bash"')


class Placement(Protocol):
    """A launcher of processes on the nodes of a job."""

    library: str
    """File of the library that it needs besides the scheduler's; "" for none."""
    setup: Tuple[str, ...]
    """Lines of Bash before the launch itself."""

    def one_per_node(self, job: Job) -> List[Layer]:
        """Return what runs a command once on each node, with the node's number in NODE_RANK and PET_NODE_RANK."""
        ...

    def one_per_rank(self, job: Job, *, named: bool) -> List[Layer]:
        """Return what runs a command once for each rank; ``named``: and says by variables which one it is."""
        ...


def _named(source: str, *, named: bool) -> List[Layer]:
    """Return what names a rank by what its launcher says of it, if it is to be ``named``."""
    return [["sh", NAME_RANK, source]] if named else []


class Srun:
    """Srun, Slurm's own."""

    library = ""
    setup: Tuple[str, ...] = ()

    def one_per_node(self, job: Job) -> List[Layer]:  # noqa: ARG002 -- of the protocol
        """Return srun with a task a node."""
        return [
            ["srun", option("--nodes", "nnodes"), option("--ntasks", "nnodes"), "--ntasks-per-node=1",
             option("--cpus-per-task", "cpus")],  # since 22.05 srun does not inherit --cpus-per-task
            [array("srun_options")],
            ["sh", NAME_NODE, "slurm"],
        ]  # fmt: skip

    def one_per_rank(self, job: Job, *, named: bool) -> List[Layer]:
        """Return srun with a task a rank.

        ``--gpu-bind=none``: a rank that sees only its own GPU cannot reach its neighbours' directly.
        """
        gpus = "--gpus-per-task=1" if job.site.gpu_per_task else "--gpu-bind=none"
        mpi: Layer = [] if named else ["--mpi=pmix"]
        return [
            ["srun", *mpi, option("--nodes", "nnodes"), option("--ntasks", "world_size"),
             option("--ntasks-per-node", "ranks_per_node"), option("--cpus-per-task", "cpus_per_rank"),
             "--distribution=block", gpus],
            [array("srun_options")],
            *_named("slurm", named=named),
        ]  # fmt: skip


class Mpirun:
    """Open MPI's mpirun, 4 or 5."""

    library = "mpirun"
    setup: Tuple[str, ...] = ('use_mpirun "${mpirun_options[@]}"',)

    def one_per_node(self, job: Job) -> List[Layer]:  # noqa: ARG002 -- of the protocol
        """Return mpirun with a process a node."""
        return [[array("mpirun"), "--map-by", "ppr:1:node:OVERSUBSCRIBE"], ["sh", NAME_NODE, "openmpi"]]

    def one_per_rank(self, job: Job, *, named: bool) -> List[Layer]:  # noqa: ARG002 -- of the protocol
        """Return mpirun with a process a rank."""
        ranks = Expansion('"ppr:$ranks_per_node:node:OVERSUBSCRIBE"')
        return [[array("mpirun"), "--map-by", ranks], *_named("openmpi", named=named)]


class Ssh:
    """A remote shell for each node: of the library, ``ssh_each_node``."""

    library = "ssh"
    setup: Tuple[str, ...] = ()

    def one_per_node(self, job: Job) -> List[Layer]:  # noqa: ARG002 -- of the protocol
        """Return the loop over the nodes, without a time limit."""
        return [["ssh_each_node", "0"]]

    def one_per_rank(self, job: Job, *, named: bool) -> List[Layer]:  # noqa: ARG002 -- of the protocol
        """Return the same, with a loop over the ranks on each node."""
        return [["ssh_each_node", "0"], ["bash", RANK_LOOP]]


class Here:
    """No launcher: processes of this machine."""

    library = ""
    setup: Tuple[str, ...] = ("record_pid",)

    def one_per_node(self, job: Job) -> List[Layer]:  # noqa: ARG002 -- of the protocol
        """Return nothing but exec, so that signals reach the command itself."""
        return [["exec"]]

    def one_per_rank(self, job: Job, *, named: bool) -> List[Layer]:  # noqa: ARG002 -- of the protocol
        """Return a loop over the ranks."""
        return [["exec", "bash", RANK_LOOP]]


PLACEMENTS: Dict[str, Placement] = {"srun": Srun(), "mpirun": Mpirun(), "ssh": Ssh(), "local": Here()}
"""By the names of launchers in site and spec files; "local" where nothing is launched elsewhere."""

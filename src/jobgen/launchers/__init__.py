"""Launchers: how processes get onto nodes, as what stands before a command, for one copy a node or one a rank.

Each module of this package is one, with its ``LAUNCHER``; everything else sees only the class below.
"""

from __future__ import annotations

from typing import List, NamedTuple, Tuple

from jobgen.base import registry
from jobgen.base.job import Job
from jobgen.base.shell import Expansion, Layer
from jobgen.schedulers import Scheduler

NAME_NODE = Expansion('"$lib/name_node.sh"')
NAME_RANK = Expansion('"$lib/name_rank.sh"')
RANK_LOOP = Expansion('"$lib/rank_loop.bash"')


class Start(NamedTuple):
    """What starts a command on the nodes."""

    launch: List[Layer]
    """Words of the launcher, up to the command that it starts."""
    naming: List[Layer]
    """What it starts first on the node, which gives the process its number and then becomes the next command."""


class Launcher:
    """What a job script says of a launcher. The library has ``<name>_each_node``, for steps with a time limit."""

    name: str
    library: str
    """File of the library that holds its functions; "" where that is the scheduler's."""
    schedulers: Tuple[str, ...] = ()
    """Under which it works; none: under all."""
    setup: Tuple[str, ...] = ()
    """Lines of Bash before the launch itself."""
    mpi_probe: Tuple[str, ...] = ()
    """The command that says which MPI it starts ranks of; none: it starts no MPI."""
    is_openmpi = False
    """Whether it belongs to Open MPI, which not every site has."""
    has_node_loop = False
    """Whether it can start each node by a command of its own: placement "node-by-node"."""

    def site_lines(self, job: Job, scheduler: Scheduler) -> List[Tuple[str, str]]:  # noqa: ARG002 -- for others
        """Return assignments that its part of the library reads, each with its comment."""
        return []

    def binds_gpus(self, job: Job) -> bool:  # noqa: ARG002 -- for others
        """Return whether each rank that ``one_per_rank`` starts sees GPUs of its own alone."""
        return False

    def one_per_node(self, job: Job) -> Start:
        """Return what runs a command once on each node, with the node's number in NODE_RANK and PET_NODE_RANK."""
        raise NotImplementedError

    def one_per_rank(self, job: Job, *, named: bool) -> Start:
        """Return what runs a command once for each rank; ``named``: and says by variables which one it is."""
        raise NotImplementedError


def name_rank(source: str, *, named: bool) -> List[Layer]:
    """Return what names a rank by what its launcher says of it, if it is to be ``named``."""
    return [["sh", NAME_RANK, source]] if named else []


def launcher_names() -> List[str]:
    """Return the names that ``launcher`` of a site or a spec may have."""
    return registry.names(__name__)


def launcher_of(name: str) -> Launcher:
    """Return the launcher of that name, one of ``launcher_names``."""
    launcher: Launcher = registry.load(__name__, name, "LAUNCHER")
    return launcher

"""Launchers: the words before a command that start one copy of it per node or per rank.

Each module of this package defines a launcher as ``LAUNCHER``. Other code uses only the class ``Launcher``.
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
    """The words before a command that start it on the nodes."""

    launch: List[Layer]
    """The launcher's command line, before the command that it starts."""
    naming: List[Layer]
    """A program that runs first on the node: it exports the node or rank number, then executes the next command."""


class Launcher:
    """The launcher-specific part of job scripts. The library has ``<name>_each_node`` for steps with a time limit."""

    name: str
    library: str
    """Library file with its functions; "": the scheduler's file."""
    schedulers: Tuple[str, ...] = ()
    """Schedulers under which it works; (): all."""
    setup: Tuple[str, ...] = ()
    """Lines of Bash before the launch."""
    mpi_probe: Tuple[str, ...] = ()
    """Command that prints the MPI whose ranks it starts; (): it does not start MPI ranks."""
    is_openmpi = False
    """Whether it belongs to Open MPI, which some sites lack."""
    has_node_loop = False
    """Whether it can start each node with a separate command (placement "node-by-node")."""

    def site_lines(self, job: Job, scheduler: Scheduler) -> List[Tuple[str, str]]:  # noqa: ARG002 -- for others
        """Return assignments for its part of the script library, each with its comment."""
        return []

    def binds_gpus(self, job: Job) -> bool:  # noqa: ARG002 -- for others
        """Return whether each rank that ``one_per_rank`` starts sees only its own GPUs."""
        return False

    def one_per_node(self, job: Job) -> Start:
        """Return the words that start a command once per node, with NODE_RANK and PET_NODE_RANK set."""
        raise NotImplementedError

    def one_per_rank(self, job: Job, *, named: bool) -> Start:
        """Return the words that start a command once per rank; ``named``: with variables that hold the rank."""
        raise NotImplementedError


def name_rank(source: str, *, named: bool) -> List[Layer]:
    """Return the program that sets a rank's variables from those of its launcher; nothing unless ``named``."""
    return [["sh", NAME_RANK, source]] if named else []


def launcher_names() -> List[str]:
    """Return the valid values of ``launcher`` in a site or a spec."""
    return [*registry.names(__name__)]


def launcher_of(name: str) -> Launcher:
    """Return the launcher ``name``, one of ``launcher_names``."""
    launcher: Launcher = registry.load(__name__, name, "LAUNCHER")
    return launcher

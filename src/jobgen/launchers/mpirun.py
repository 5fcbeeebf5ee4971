"""Launcher mpirun of Open MPI 4 or 5."""

from __future__ import annotations

from typing import List, Tuple

from jobgen.base.job import Job
from jobgen.base.shell import Expansion, Layer, array, command
from jobgen.launchers import NAME_NODE, Launcher, Start, name_rank
from jobgen.schedulers import Scheduler

MPIRUN: Layer = [array("mpirun"), "--bind-to", "none", array("mpirun_options"), array("mpirun_exports")]


class Mpirun(Launcher):
    """Starts all processes with one mpirun."""

    name = "mpirun"
    library = "mpirun"
    setup = ("set_mpirun # -> mpirun, its full path; mpirun_exports: -x NAME for each variable",)
    mpi_probe = ("mpirun", "--version")
    is_openmpi = True

    def site_lines(self, job: Job, scheduler: Scheduler) -> List[Tuple[str, str]]:
        """Return mpirun's options: those for finding the nodes, and the site's."""
        words = scheduler.mpirun_options
        why = "--hostfile: else mpirun knows no other node" if words else ""
        return [(f"mpirun_options=({command([*words, *job.site.mpirun_options])})", why)]

    def one_per_node(self, job: Job) -> Start:  # noqa: ARG002 -- not needed
        """Return mpirun with one process per node."""
        return Start([MPIRUN, ["--map-by", "ppr:1:node:OVERSUBSCRIBE"]], [["sh", NAME_NODE, "openmpi"]])

    def one_per_rank(self, job: Job, *, named: bool) -> Start:  # noqa: ARG002 -- not needed
        """Return mpirun with one process per rank."""
        ranks = Expansion('"ppr:$ranks_per_node:node:OVERSUBSCRIBE"')
        return Start([MPIRUN, ["--map-by", ranks]], name_rank("openmpi", named=named))


LAUNCHER = Mpirun()

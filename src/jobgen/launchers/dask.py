"""Launcher that uses Dask workers, one on each node (``dask_each_node`` of the script library)."""

from __future__ import annotations

from jobgen.base.job import Job
from jobgen.launchers import RANK_LOOP, Launcher, Start


class DaskLauncher(Launcher):
    """Starts one Dask task on each node."""

    name = "dask"
    library = ""
    schedulers = ("dask",)
    setup = ("record_pid",)

    def one_per_node(self, job: Job) -> Start:  # noqa: ARG002 -- not needed
        """Return the library function that runs a command on all nodes, without a time limit."""
        return Start([["dask_each_node", "0"]], [])

    def one_per_rank(self, job: Job, *, named: bool) -> Start:  # noqa: ARG002 -- not needed
        """Return the same function, with a loop over the ranks on each node."""
        return Start([["dask_each_node", "0"]], [["bash", RANK_LOOP]])


LAUNCHER = DaskLauncher()

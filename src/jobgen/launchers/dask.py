"""Dask's workers, one on each node: of the library, ``dask_each_node``."""

from __future__ import annotations

from jobgen.base.job import Job
from jobgen.launchers import RANK_LOOP, Launcher, Start


class DaskLauncher(Launcher):
    """A task of Dask on each node."""

    name = "dask"
    library = ""
    schedulers = ("dask",)
    setup = ("record_pid",)

    def one_per_node(self, job: Job) -> Start:  # noqa: ARG002 -- not needed
        """Return the function that runs a command on all of them, without a time limit."""
        return Start([["dask_each_node", "0"]], [])

    def one_per_rank(self, job: Job, *, named: bool) -> Start:  # noqa: ARG002 -- not needed
        """Return the same, with a loop over the ranks on each node."""
        return Start([["dask_each_node", "0"]], [["bash", RANK_LOOP]])


LAUNCHER = DaskLauncher()

"""Launcher that starts processes on this machine."""

from __future__ import annotations

from jobgen.base.job import Job
from jobgen.launchers import RANK_LOOP, Launcher, Start


class LocalLauncher(Launcher):
    """Starts the command as a child process of the script."""

    name = "local"
    library = ""
    schedulers = ("local",)
    setup = ("record_pid",)

    def one_per_node(self, job: Job) -> Start:  # noqa: ARG002 -- not needed
        """Return exec, so that signals reach the command directly."""
        return Start([["exec"]], [])

    def one_per_rank(self, job: Job, *, named: bool) -> Start:  # noqa: ARG002 -- not needed
        """Return exec with a loop over the ranks."""
        return Start([["exec"]], [["bash", RANK_LOOP]])


LAUNCHER = LocalLauncher()

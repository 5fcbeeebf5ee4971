"""Launcher that uses a remote shell per node (``ssh_each_node`` of the script library)."""

from __future__ import annotations

from typing import List, Tuple

from jobgen.base.job import Job
from jobgen.base.shell import command, words_of
from jobgen.launchers import RANK_LOOP, Launcher, Start
from jobgen.schedulers import Scheduler


class Ssh(Launcher):
    """Starts processes with ssh, rsh, or another remote shell of the site."""

    name = "ssh"
    library = "ssh"
    has_node_loop = True  # it always starts each node separately

    def site_lines(self, job: Job, scheduler: Scheduler) -> List[Tuple[str, str]]:  # noqa: ARG002 -- not needed
        """Return the site's remote shell command."""
        words = words_of(job.site.remote_shell, what=f"site {job.site.name}: remote_shell")
        return [(f"remote_shell=({command(words)})", "before the name of a node")]

    def one_per_node(self, job: Job) -> Start:  # noqa: ARG002 -- not needed
        """Return the library function that loops over the nodes, without a time limit."""
        return Start([["ssh_each_node", "0"]], [])

    def one_per_rank(self, job: Job, *, named: bool) -> Start:  # noqa: ARG002 -- not needed
        """Return the same function, with a loop over the ranks on each node."""
        return Start([["ssh_each_node", "0"]], [["bash", RANK_LOOP]])


LAUNCHER = Ssh()

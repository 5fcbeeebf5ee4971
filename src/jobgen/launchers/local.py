"""No launcher: processes of this machine."""

from __future__ import annotations

from typing import List

from jobgen.launchers import RANK_LOOP, Launcher
from jobgen.model import Job
from jobgen.shell import Layer


class Local(Launcher):
    """A child of the script."""

    name = "local"
    library = ""
    schedulers = ("local",)
    setup = ("record_pid",)

    def one_per_node(self, job: Job) -> List[Layer]:  # noqa: ARG002 -- not needed
        """Return nothing but exec, so that signals reach the command itself."""
        return [["exec"]]

    def one_per_rank(self, job: Job, *, named: bool) -> List[Layer]:  # noqa: ARG002 -- not needed
        """Return a loop over the ranks."""
        return [["exec", "bash", RANK_LOOP]]


LAUNCHER = Local()

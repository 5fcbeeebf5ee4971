"""One machine without a scheduler."""

from __future__ import annotations

from typing import List

from jobgen.base.job import Job
from jobgen.schedulers import Scheduler


class NoScheduler(Scheduler):
    """Runs scripts in a shell on this machine."""

    name = "local"
    suffix = ".sh"
    submit = "bash"
    launcher = "local"
    identity = "job_id=$(date +%Y%m%d-%H%M%S)-$$\nsubmit_folder=$PWD"
    header = "local_header.txt"
    one_machine = True
    has_queue = False

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Return the command that runs the script on this machine."""
        return ["bash", path, *arguments]

    def interactive(self, job: Job, path: str) -> List[str]:  # noqa: ARG002 -- not needed
        """Return the command that runs the script on this machine."""
        return ["bash", path]


SCHEDULER = NoScheduler()

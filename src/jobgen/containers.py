"""The container as an axis of its own: what a job script says of it. The library's ``use_container`` does the rest."""

from __future__ import annotations

from typing import Dict, List

from jobgen.model import Job
from jobgen.shell import Word, array

GPU_OPTIONS: Dict[str, str] = {"nvidia": "--nv", "amd": "--rocm", "none": ""}
"""Apptainer's option for a node's GPUs and their driver."""

CONTAINER: List[Word] = [array("container")]
"""What stands before a command that runs in the image: nothing in a virtual environment."""


def use_container(job: Job) -> List[Word]:
    """Return the call that chooses the container: its GPU option, and the site's own bind paths."""
    return ["use_container", GPU_OPTIONS[job.site.accelerator], *job.site.binds]

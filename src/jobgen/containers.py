"""The words that wrap a process: Apptainer, or none in a virtual environment."""

from __future__ import annotations

from typing import Dict, List

from jobgen.model import Job
from jobgen.words import Word, array, variable

GPUS: Dict[str, str] = {"nvidia": "--nv", "amd": "--rocm", "none": ""}
"""Apptainer's option for a node's GPUs and their driver."""


def wrapper() -> List[Word]:
    """Return the words in front of a command that runs in IMAGE, the binds left to the script.

    The environment is passed on whole: with ``--cleanenv`` ranks that a launcher numbers by variables would each be
    rank 0. ``--no-eval``: the run script of an image from Docker would have a shell expand the arguments.
    """
    return ["apptainer", "run", "--no-eval", array("options"), variable("PWD", option="--pwd"), variable("IMAGE")]


def gpu_option(job: Job) -> str:
    """Return the line that gives the image the GPUs."""
    option = GPUS[job.site.accelerator]
    return f'[ "$DEVICE" = cpu ] || options+=({option}) # says nothing where there is no GPU' if option else ""

"""Jobs that build, on a node, what other jobs run in: their skeletons and settings."""

from __future__ import annotations

from typing import Dict, List

from jobgen.schedulers import Setting

SKELETONS: Dict[str, str] = {"venv": "venv", "image": "image"}
"""The template of a task's script, where it is not ``job``, that of all tasks of ranks."""

SETTINGS: Dict[str, List[Setting]] = {
    "venv": [
        ("VENV", ".venv", "where jobs look for it; on a disk that all nodes share"),
        ("VARIANT", "cuda", "a name in containers/pins: cuda or cpu"),
        ("WHEELHOUSE", "", "a folder that `make wheelhouse` filled: then no network is needed"),
        ("PYTHON", "python3", "3.11 or later"),
        ("HOROVOD", "0", "1: Horovod too, built against the MPI on PATH"),
        ("NCCL_PATH", "", "build it with this NCCL, and the CUDA in CUDA_HOME, not with torch's"),
    ],
    "image": [
        ("IMAGE", "slipway.sif", "what jobs look for"),
        ("VARIANT", "cuda", "a name in containers/pins: cuda or cpu"),
        ("BASE_IMAGE", "", "another base than the pins': a registry's name, or docker-archive:PATH"),
        ("BUILD_ARGS", "", "KEY=VALUE words for the recipe"),
    ],
}


def usage(text: str) -> str:
    """Return how people start a script, without the trainer's arguments: there is no trainer in it."""
    return text.partition(" [options of the trainer]")[0]

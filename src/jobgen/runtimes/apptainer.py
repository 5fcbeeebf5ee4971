"""Container runtime Apptainer."""

from __future__ import annotations

from typing import ClassVar, Dict, Tuple

from jobgen.runtimes import Container


class Apptainer(Container):
    """Apptainer 1.1 or later."""

    name = "apptainer"
    library = "apptainer"
    gpu_options: ClassVar[Dict[str, Tuple[str, ...]]] = {"nvidia": ("--nv",), "amd": ("--rocm",)}
    runs_sif = True
    inspect = ("apptainer", "inspect", "--labels")
    mounts_squashfs = True
    needs = "Apptainer 1.1"


CONTAINER = Apptainer()

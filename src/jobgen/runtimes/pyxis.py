"""Container runtime Pyxis, a Slurm plugin: srun starts each task in the image with Enroot."""

from __future__ import annotations

from jobgen.runtimes import Container


class Pyxis(Container):
    """Pyxis 0.11 or later. Enroot's hook gives the container the job's GPUs."""

    name = "pyxis"
    library = "pyxis"
    of_launcher = "srun"
    needs = "Pyxis 0.11"


CONTAINER = Pyxis()

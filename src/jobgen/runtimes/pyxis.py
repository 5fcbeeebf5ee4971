"""Container runtime Pyxis, a Slurm plugin: srun starts each task in the image with Enroot."""

from __future__ import annotations

from typing import List

from jobgen.base.shell import Expansion, Word, array
from jobgen.runtimes import Container


class Pyxis(Container):
    """Pyxis 0.11 or later. Enroot's hook gives the container the job's GPUs."""

    name = "pyxis"
    library = "pyxis"
    launcher_of_container = "srun"
    pulls_images = True
    image_source = "`enroot import` makes it"
    needs = "Pyxis 0.11"

    def words(self, options: List[Word]) -> List[Word]:
        """Return the options of srun that start tasks in the image."""
        image = Expansion('--container-image="${image#docker://}"')
        folder = Expansion('--container-workdir="$PWD"')
        return [image, folder, array("binds"), "--no-container-entrypoint", *options]


CONTAINER = Pyxis()

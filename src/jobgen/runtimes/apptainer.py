"""Container runtime Apptainer."""

from __future__ import annotations

from typing import ClassVar, Dict, List, Tuple

from jobgen.base.shell import Expansion, Word, array
from jobgen.runtimes import IMAGE, Container


class Apptainer(Container):
    """Apptainer 1.1 or later."""

    name = "apptainer"
    library = "apptainer"
    gpu_options: ClassVar[Dict[str, Tuple[str, ...]]] = {"nvidia": ("--nv",), "amd": ("--rocm",)}
    runs_sif = True
    image_source = "image_build.job builds it"
    inspect = ("apptainer", "inspect", "--labels")
    mounts_squashfs = True
    needs = "Apptainer 1.1"

    def words(self, options: List[Word]) -> List[Word]:
        """Return ``apptainer run``. Without --no-eval, a shell would expand the arguments in images from Docker."""
        return [self.name, "run", "--no-eval", Expansion('--pwd="$PWD"'), *options, array("binds"), IMAGE]


CONTAINER = Apptainer()

"""Container runtime SingularityCE, which has the same options as Apptainer."""

from __future__ import annotations

from jobgen.runtimes.apptainer import Apptainer


class Singularity(Apptainer):
    """SingularityCE 3.10 or later, the first with --no-eval."""

    name = "singularity"
    inspect = ("singularity", "inspect", "--labels")
    needs = "SingularityCE 3.10"


CONTAINER = Singularity()

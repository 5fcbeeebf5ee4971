"""No scheduler: this machine."""

from __future__ import annotations

from typing import List, Literal

from jobgen.model import Job
from jobgen.schedulers import Directive, Setting


class Local:
    """A shell."""

    templates = "local"
    suffix = ".sh"
    remarks: Literal["behind", "above"] = "behind"
    number = "$$"
    mpirun = '$(compgen -e -P "-x ")'

    def usage(self, path: str) -> str:
        """Return how people start the script."""
        return f"{path} [options of the trainer]"

    def directives(self, job: Job) -> List[Directive]:  # noqa: ARG002 -- of the protocol
        """Return none."""
        return []

    def settings(self, job: Job) -> List[Setting]:
        """Return the number of ranks."""
        return [("RANKS_PER_NODE", str(job.ranks_per_node), "each on a GPU, or on its share of the cores")]

    def threads(self, job: Job) -> str:  # noqa: ARG002
        """Share the cores, rounded up to at least one."""
        return "$((($(nproc) + RANKS_PER_NODE - 1) / RANKS_PER_NODE))"

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Run it."""
        return [path, *arguments]

    def continued(self) -> str:
        """Run the copy in the run folder."""
        return '${given}bash $(printf "%q " "$RUN_DIR/job.sh" "$@")'

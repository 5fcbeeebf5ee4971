"""No scheduler: this machine."""

from __future__ import annotations

from typing import Dict, List, Literal, Tuple

from jobgen.model import Job
from jobgen.schedulers.base import Directive


class Local:
    """A shell."""

    name = "local"
    suffix = ".sh"
    submit = "bash"
    comments: Literal["behind", "above"] = "behind"

    def directives(self, job: Job) -> List[Directive]:  # noqa: ARG002 -- of the protocol
        """Return none."""
        return []

    def site_lines(self, job: Job) -> List[Tuple[str, str]]:  # noqa: ARG002
        """Return what starts processes."""
        return [("launcher=local", "processes start here")]

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Run it."""
        return [path, *arguments]

    def environment(self, arguments: List[str]) -> Dict[str, str]:  # noqa: ARG002
        """Return none: a script has its arguments."""
        return {}

"""What every scheduler can say of itself to a job script."""

from __future__ import annotations

from typing import Dict, List, Literal, Protocol, Tuple

from jobgen.model import Job

Directive = Tuple[str, str]
"""A directive, and why it is there."""


class Scheduler(Protocol):
    """How a scheduler is asked for what a job needs, and how jobs are submitted to it.

    The rest is Bash: ``jobscripts/lib/<name>.bash`` (find_allocation, watch_time_limit, stop_for_signal, again,
    job_is_over, continue_command), and the templates ``<name>/header.txt``, ``identity.bash`` (sets job_id),
    ``own_path.bash`` (sets script) and ``<resume>.txt`` for each ``resume`` of a site.
    """

    name: str
    suffix: str
    """Of the scripts' names."""
    submit: str
    """The command that submits a script, or starts it."""
    comments: Literal["behind", "above"]
    """Where a reason can stand: some schedulers read a directive to the end of its line."""

    def directives(self, job: Job) -> List[Directive]:
        """Return what stands at the top of the script, in order."""
        ...

    def site_lines(self, job: Job) -> List[Tuple[str, str]]:
        """Return assignments that the library reads, each with its comment."""
        ...

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Return the command that submits the script at ``path`` with ``arguments`` for what it trains."""
        ...

    def environment(self, arguments: List[str]) -> Dict[str, str]:
        """Return the variables by which those arguments reach the script, where the command cannot hold them."""
        ...

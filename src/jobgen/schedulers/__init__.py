"""What each scheduler calls things. ``scheduler_of`` picks one; everything else sees only the protocol."""

from __future__ import annotations

from typing import List, Protocol, Tuple

from jobgen.model import Job

Directive = Tuple[str, str]
"""A directive, and why it is there."""
Setting = Tuple[str, str, str]
"""A variable's name, its default as it stands in ``: "${NAME:=...}"``, and what it is for."""


class Scheduler(Protocol):
    """How a scheduler is told what a job needs, and how a script in it learns where it is."""

    templates: str
    """The folder of its where.bash (sets job_id, restarts, nnodes, head_node, number, threads, scratch, RUN_DIR),
    traps.bash, and again.bash (starts a job again that may be resumed)."""

    def usage(self, path: str) -> str:
        """Return how people start the script at ``path``."""
        ...

    def directives(self, job: Job) -> List[Directive]:
        """Return what stands at the top of the script, in order."""
        ...

    def settings(self, job: Job) -> List[Setting]:
        """Return the settings whose defaults depend on the scheduler."""
        ...

    def threads(self, job: Job) -> str:
        """Return Bash arithmetic for the CPU threads of one rank."""
        ...

    def continued(self) -> str:
        """Return, as it stands between double quotes, the command by which a person continues a run."""
        ...


def scheduler_of(job: Job) -> Scheduler:
    """Return the scheduler of ``job``'s site."""
    if job.site.scheduler == "slurm":
        from jobgen.schedulers.slurm import Slurm  # noqa: PLC0415 -- one of them is enough

        return Slurm()
    from jobgen.schedulers.local import Local  # noqa: PLC0415

    return Local()

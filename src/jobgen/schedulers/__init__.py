"""What each scheduler calls things. ``scheduler_of`` picks one; everything else sees only the protocol."""

from __future__ import annotations

from typing import List, Literal, Protocol, Tuple

from jobgen.model import Job

Directive = Tuple[str, str]
"""A directive, and why it is there."""
Setting = Tuple[str, str, str]
"""A variable's name, its default as it stands in ``: "${NAME:=...}"``, and what it is for."""


class Scheduler(Protocol):
    """How a scheduler is told what a job needs, and how a script in it learns where it is."""

    templates: str
    """The folder of its begin.bash (goes to where the job was submitted), where.bash (sets job_id, restarts, nodes,
    nnodes, cpus, scratch, RUN_DIR), traps.bash, and one for each ``resume`` but none (starts a job again that may be
    resumed)."""
    suffix: str
    """Of the scripts' names."""
    remarks: Literal["behind", "above"]
    """Where a reason can stand: some schedulers read a directive to the end of its line."""
    number: str
    """The job's number, in Bash arithmetic."""
    mpirun: str
    """What mpirun has to be told here, as it stands in Bash: where its nodes are, and what to hand over to them."""

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

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Return the command that submits the script at ``path`` and gives ``arguments`` to what it trains."""
        ...

    def continued(self) -> str:
        """Return, as it stands between double quotes, the command that continues a run; ``$given`` are the settings."""
        ...


def scheduler_of(job: Job) -> Scheduler:
    """Return the scheduler of ``job``'s site."""
    if job.site.scheduler == "slurm":
        from jobgen.schedulers.slurm import Slurm  # noqa: PLC0415 -- one of them is enough

        return Slurm()
    if job.site.scheduler == "pbs":
        from jobgen.schedulers.pbs import PBS  # noqa: PLC0415

        return PBS()
    from jobgen.schedulers.local import Local  # noqa: PLC0415

    return Local()

"""Schedulers: ``scheduler_of`` picks one; everything else sees only the protocol in ``base``."""

from __future__ import annotations

from jobgen.model import Job
from jobgen.schedulers.base import Scheduler


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

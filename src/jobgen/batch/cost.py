"""Maximum cost of a set of jobs, and the confirmation prompt."""

from __future__ import annotations

import sys
from typing import List, NamedTuple

from jobgen.base.errors import UsageError
from jobgen.base.job import Job


class Cost(NamedTuple):
    """Core-hours and GPU-hours of jobs that run to their time limits."""

    core_hours: float
    gpu_hours: float

    @property
    def hours(self) -> float:
        """GPU-hours of jobs with GPUs, else core-hours."""
        return self.gpu_hours or self.core_hours

    def __str__(self) -> str:
        """Return the cost as text."""
        return f"at most {self.core_hours:.1f} core-hours, {self.gpu_hours:.1f} GPU-hours, in one attempt each"


def cost_of(jobs: List[Job]) -> Cost:
    """Return the cost of ``jobs`` if each runs to its time limit once."""
    hours = [(job, job.spec.nodes * job.spec.minutes / 60) for job in jobs]
    return Cost(
        sum(each * job.cpus_per_node for job, each in hours), sum(each * job.gpus_per_node for job, each in hours)
    )


def confirm(hours: float, *, limit: float, yes: bool) -> None:
    """Request confirmation at the terminal if ``hours`` exceed ``limit``, unless ``yes``.

    Raises:
        UsageError: if standard input is not a terminal, or the answer is not yes.
    """
    if hours <= limit or yes:
        return
    question = f"this may use more than {limit:g} hours (--limit): submit? [y/N] "
    if not sys.stdin or not sys.stdin.isatty():  # None if standard input is closed
        raise UsageError(
            "not-confirmed", f"the jobs may use {hours:.1f} hours, more than --limit {limit:g}: add --yes to submit."
        )
    try:
        answer = input(question)
    except EOFError:
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        raise UsageError("not-confirmed", "not confirmed: nothing was submitted.")

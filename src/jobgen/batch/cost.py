"""What runs may cost, and the question whether that is meant."""

from __future__ import annotations

import sys
from typing import List, NamedTuple

from jobgen.base.errors import UsageError, printable
from jobgen.base.job import Job


class Cost(NamedTuple):
    """What jobs take at most, at their time limits."""

    core_hours: float
    gpu_hours: float

    def __str__(self) -> str:
        """Return it in words."""
        return f"at most {self.core_hours:.1f} core-hours, {self.gpu_hours:.1f} GPU-hours, in one attempt each"


def cost_of(jobs: List[Job]) -> Cost:
    """Return what ``jobs`` take if each runs to its time limit once."""
    hours = [(job, job.spec.nodes * job.spec.minutes / 60) for job in jobs]
    return Cost(
        sum(each * job.cpus_per_node for job, each in hours), sum(each * job.gpus_per_node for job, each in hours)
    )


def ask(hours: float, *, limit: float, yes: bool) -> None:
    """Ask a person about more ``hours`` of cores or GPUs than ``limit``, unless ``yes`` has been said.

    Raises:
        UsageError: without a person, or a yes.
    """
    if hours <= limit or yes:
        return
    question = f"that is more than {limit:g} hours (--limit): submit? [y/N] "
    if not sys.stdin or not sys.stdin.isatty():  # None: it is closed
        raise UsageError("not-confirmed", f"that may take {hours:.1f} hours, more than --limit {limit:g}: add --yes.")
    try:
        answer = input(question)
    except EOFError:
        answer = ""
    if answer.strip().lower() not in {"y", "yes"}:
        raise UsageError("not-confirmed", "nothing has been submitted.")


def say(text: str) -> None:
    """Print a line, unless standard output is closed."""
    if sys.stdout:
        sys.stdout.write(f"{printable(text)}\n")

"""Status lines of a job: one for each task and run; for large arrays, counts by state and the failed ones."""

from __future__ import annotations

from collections import Counter
from typing import Dict, List, Optional, Sequence, Tuple

from jobgen.base.queue import JobId, Seen, tasks_of
from jobgen.jobs import account
from jobgen.jobs.runs import Run

SHOWN = 10
"""Maximum tasks with one line each; of more tasks, counts are printed, and lines for this many failed ones."""
BAD = ("failed", "crashed")
"""States of runs that need the user's attention."""


def lines_of_jobs(seen: Sequence[Seen]) -> List[str]:
    """Return status lines for the scheduler's records of a job or of an array's tasks."""
    tasks = [job for job in seen if "[]" not in job.job_id]  # PBS lists the array itself too
    if len(tasks) <= SHOWN:
        return [_of_job(job) for job in seen]
    counts: Dict[str, int] = Counter()
    for job in tasks:
        counts[job.state] += max(1, len(tasks_of(job.job_id)))  # Slurm lists waiting tasks as one job
    lines = [_of_job(job) for job in seen if job not in tasks]
    lines.append(f"{sum(counts.values())} tasks: {counted(counts)}")
    return lines + _first([(job.job_id, [_of_job(job)]) for job in tasks if job.failed])


def lines_of_runs(runs: Sequence[Run], job: Optional[JobId]) -> List[str]:
    """Return status lines for the runs of ``job`` and the resources that they used."""
    if len(runs) <= SHOWN:
        lines = [line for run in runs for line in _of_run(run, job)]
    else:
        states = [(run, run.state) for run in runs]
        lines = [f"{len(runs)} runs in {runs[0].path.parent}: {counted(Counter(state for _, state in states))}"]
        lines += _first([(run.path.name, _of_run(run, job)) for run, state in states if state in BAD])
    used = [found for run in runs for found in run.accounts]
    said = account.describe(used, attempts=sum(run.launches for run in runs))
    if said:
        lines.append(f"    {said}" if len(runs) == 1 else f"all runs: {said}")
    return lines


def _of_job(job: Seen) -> str:
    return f"job {job.job_id}: {job.state} {job.about}"


def _of_run(run: Run, job: Optional[JobId]) -> List[str]:
    lines = [f"run {run.path}: {run.describe()}"]
    if job and (last := run.job) and last.job and not last.job.is_in_array(job):
        lines.append(f"    continued by job {last.job}")
    if said := run.goodput:
        lines.append(f"    time: {said}")
    if run.stop.exists():
        lines.append(f"    stop requested with the file {run.stop.name}")
    return lines


def counted(counts: Dict[str, int]) -> str:
    """Return the counts by state as text, the largest first."""
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items(), key=lambda item: -item[1]))


def _first(failed: List[Tuple[str, List[str]]]) -> List[str]:
    """Return the lines of the first SHOWN entries, and one line with the names of the others."""
    lines = [line for _, own in failed[:SHOWN] for line in own]
    if len(failed) > SHOWN:
        lines.append(f"    failed, too: {', '.join(name for name, _ in failed[SHOWN:])}")
    return lines

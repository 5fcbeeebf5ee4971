"""States of the runs of a study or sweep, from their run folders and the scheduler's record of their last jobs."""

from __future__ import annotations

import calendar
import time
from dataclasses import dataclass
from typing import Any, Dict, Generic, List, Literal, Optional, Tuple, TypeVar

from jobgen.base.errors import JobgenError, UsageError
from jobgen.base.job import Job
from jobgen.base.queue import JobId, Queue, Seen, job_id, tasks_of
from jobgen.batch.record import RunSet, SetEntry
from jobgen.jobs.runs import Run
from jobgen.schedulers import queue_of

MAX_CLOCK_SKEW = 2
"""Seconds by which the file server's clock may be slower than this machine's."""
State = Literal["missing", "waiting", "running", "done", "failed"]
E = TypeVar("E", bound=SetEntry)


@dataclass(frozen=True)
class RunState(Generic[E]):
    """An entry and the state of its run."""

    entry: E
    run: Run
    state: State
    """missing: not submitted; failed: the last attempt ended and no job will continue the run."""
    about: str
    """One-line description of the state."""
    waited: Optional[float]
    """Seconds from the last submission to the start of the next attempt; None if unknown."""
    refused: bool
    """Whether the run failed with an error that an unchanged retry cannot fix, such as divergence."""


class Scheduled:
    """Cache of the scheduler's answers: one query for all tasks of an array."""

    def __init__(self, queue: Optional[Queue]) -> None:
        """``queue``: the scheduler to query; None: no job has a record."""
        self._queue = queue
        self._seen: Dict[JobId, Dict[JobId, Seen]] = {}

    def look(self, job: JobId) -> Optional[Seen]:
        """Return the scheduler's record of ``job``; None if it has none (any more).

        Raises:
            JobgenError: if the scheduler does not answer.
        """
        whole = job._replace(task="")
        if whole not in self._seen:
            seen = self._queue.look(whole) if self._queue else []
            self._seen[whole] = {task: each for each in seen for task in tasks_of(each.job_id)}
        return self._seen[whole].get(job._replace(server=""))


def states_of(record: RunSet[E, Any]) -> List[RunState[E]]:
    """Return the states of the runs in the order of their entries.

    Raises:
        JobgenError: if the scheduler's answer is needed and it does not answer.
    """
    scheduled = Scheduled(queue_of(record.head.scheduler))
    return [_state_of(record, entry, scheduled) for entry in record.entries.values()]


def _state_of(record: RunSet[E, Any], entry: E, scheduled: Scheduled) -> RunState[E]:
    run, job = Run(record.run_folder(entry)), job_id(entry.job or "")
    if not job:
        return RunState(entry, run, "missing", "not submitted", None, refused=False)
    begun = run.started_by(job) is not None  # else the folder's state is from an earlier submission
    state: State = "failed"
    about = run.describe()
    if begun and run.is_done:
        state = "done"
    elif run.alive:
        state = "running"
    else:
        phase, said = _asked(run, job, scheduled, begun=begun)
        if phase in ("waiting", "running"):
            state = "waiting" if phase == "waiting" else "running"
        if phase == "waiting" or not begun:
            about = f"job {entry.job} {said or 'is not in the queue'}; {about}"
    refused = state == "failed" and begun and run.has_permanent_error
    return RunState(entry, run, state, about, _waited(entry, run), refused)


def _asked(run: Run, job: JobId, scheduled: Scheduled, *, begun: bool) -> Tuple[str, str]:
    """Return phase and description of ``job``, or of the job that continues it; "" twice without a record."""
    last = run.job if begun else None
    seen = scheduled.look(last.job if last and last.job else job)
    return (seen.phase, f"{seen.state} {seen.about}") if seen else ("", "")


def _waited(entry: SetEntry, run: Run) -> Optional[float]:
    try:
        at = time.strptime(entry.submitted or "", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
    submitted = calendar.timegm(at) - at.tm_gmtoff
    waits = [began - submitted for began in run.start_times if began > submitted - MAX_CLOCK_SKEW]
    return max(0.0, waits[0]) if waits else None


def queue_time_text(state: RunState[E]) -> str:
    """Return the run's queue time as text in seconds; "" if unknown."""
    return "" if state.waited is None else f"{state.waited:.0f} s"


def table(rows: List[List[str]]) -> List[str]:
    """Return one line for each row, with aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip() for row in rows]


def require_training(job: Job, *, what: str) -> None:
    """Raise a JobgenError if ``job``, the base of ``what`` ("a study"), does not train or cannot be followed."""
    if job.spec.task != "train":
        raise UsageError(
            "nothing-to-vary", f"{job.spec.name} does not train: {what} needs a training spec such as ddp."
        )
    scheduler = job.site.scheduler
    if queue_of(scheduler) is None:
        raise JobgenError(
            "no-scheduler", f"{what} needs a scheduler that queues jobs, and {scheduler} does not: choose another site."
        )

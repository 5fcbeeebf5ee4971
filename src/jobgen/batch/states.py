"""How far each run of a set is: what its run folder says, and what the scheduler says of its last job."""

from __future__ import annotations

import calendar
import time
from dataclasses import dataclass
from typing import Dict, Generic, List, Literal, Optional, Tuple, TypeVar

from jobgen.base.errors import JobgenError
from jobgen.base.queue import JobId, Queue, Seen, job_id, tasks_of
from jobgen.batch.record import RunSet, SetEntry
from jobgen.jobs.runs import Run
from jobgen.schedulers import queue_of

CLOCKS_APART = 2
"""Seconds by which the clock of a file server may be behind this one."""
State = Literal["missing", "waiting", "running", "done", "failed"]
E = TypeVar("E", bound=SetEntry)


@dataclass(frozen=True)
class RunState(Generic[E]):
    """An entry of a set, and what became of its run."""

    entry: E
    run: Run
    state: State
    """missing: not submitted; failed: its last attempt ended, and nothing goes on by itself."""
    about: str
    """In words."""
    waited: Optional[float]
    """Seconds from its last submission to the attempt that followed; None while that is not known."""
    refused: bool
    """Whether it failed so that trying again unchanged cannot help, as the trainer says: it diverged, say."""


class Scheduled:
    """What a scheduler says of jobs; it is asked once for all tasks of an array."""

    def __init__(self, queue: Optional[Queue]) -> None:
        """Ask ``queue``, if there is one."""
        self._queue = queue
        self._seen: Dict[JobId, Dict[JobId, Seen]] = {}

    def look(self, job: JobId) -> Optional[Seen]:
        """Return what it says of ``job``; None if it has forgotten it.

        Raises:
            JobgenError: if it does not answer.
        """
        whole = job._replace(task="")
        if whole not in self._seen:
            seen = self._queue.look(whole) if self._queue else []
            self._seen[whole] = {task: each for each in seen for task in tasks_of(each.job_id)}
        return self._seen[whole].get(job._replace(server=""))


def states_of(record: RunSet[E]) -> List[RunState[E]]:
    """Return how far the runs are.

    Raises:
        JobgenError: if the scheduler has to be asked, and does not answer.
    """
    scheduled = Scheduled(queue_of(record.scheduler))
    return [_state_of(record, entry, scheduled) for entry in record.entries.values()]


def _state_of(record: RunSet[E], entry: E, scheduled: Scheduled) -> RunState[E]:
    run, job = Run(record.run_folder(entry)), job_id(entry.job or "")
    if not job:
        return RunState(entry, run, "missing", "not submitted", None, refused=False)
    begun = run.started_by(job) is not None  # else what the folder says is of an earlier submission
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
            about = f"job {entry.job} {said or 'is gone'}; {about}"
    refused = state == "failed" and begun and run.is_refused
    return RunState(entry, run, state, about, _waited(entry, run), refused)


def _asked(run: Run, job: JobId, scheduled: Scheduled, *, begun: bool) -> Tuple[str, str]:
    """Return the phase of ``job``, or of the one that continues it; "" if it is gone; and what is said of it."""
    last = run.job if begun else None
    seen = scheduled.look(last.job if last and last.job else job)
    return (seen.phase, f"{seen.state} {seen.about}") if seen else ("", "")


def _waited(entry: SetEntry, run: Run) -> Optional[float]:
    try:
        at = time.strptime(entry.submitted or "", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
    submitted = calendar.timegm(at) - at.tm_gmtoff
    waits = [began - submitted for began in run.beginnings if began > submitted - CLOCKS_APART]
    return max(0.0, waits[0]) if waits else None


def shown_wait(state: RunState[E]) -> str:
    """Return the seconds that a run waited for its job, for people; "" while they are not known."""
    return "" if state.waited is None else f"{state.waited:.0f} s"


def table(rows: List[List[str]]) -> List[str]:
    """Return a line for each row, in columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip() for row in rows]


def refuse_unknown(scheduler: str, *, what: str) -> None:
    """Raise a JobgenError if the jobs of ``what`` at ``scheduler`` cannot be followed."""
    if queue_of(scheduler) is None:
        raise JobgenError(
            "no-scheduler", f"{what} needs a scheduler that queues jobs, and {scheduler} is none: choose another site."
        )

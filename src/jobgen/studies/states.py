"""How far each point of a study is: what its run folder says, and what the scheduler says of its last job."""

from __future__ import annotations

import calendar
import time
from typing import List, Literal, NamedTuple, Optional

from jobgen.errors import JobgenError
from jobgen.queues import Queue, job_id, queue_of
from jobgen.runs import Run
from jobgen.studies.record import Entry, Study

CLOCKS_APART = 2
"""Seconds by which the clock of a file server may be behind this one."""
State = Literal["missing", "waiting", "running", "done", "failed"]


class PointState(NamedTuple):
    """A point, and what became of it."""

    entry: Entry
    state: State
    """failed: its last attempt ended, and nothing goes on by itself."""
    about: str
    """In words."""
    waited: Optional[float]
    """Seconds from its last submission to the attempt that followed; None while that is not known."""


def states_of(study: Study) -> List[PointState]:
    """Return how far the points are.

    Raises:
        JobgenError: if the scheduler has to be asked, and does not answer.
    """
    queue = queue_of(study.scheduler)
    return [_state_of(study, entry, queue) for entry in study.entries.values()]


def _state_of(study: Study, entry: Entry, queue: Optional[Queue]) -> PointState:
    run = Run(study.run_folder(entry))
    if not entry.job:
        return PointState(entry, "missing", "not submitted", None)
    state: State = "failed"
    about = run.describe()
    if run.is_done:
        state = "done"
    elif run.alive:
        state = "running"
    else:
        phase, said = _asked(entry, queue)
        if phase in ("waiting", "running"):
            state = "waiting" if phase == "waiting" else "running"
        if phase == "waiting" or not run.attempt:
            about = f"job {entry.job} {said or 'is gone'}; {about}"
    return PointState(entry, state, about, _waited(entry, run))


def _asked(entry: Entry, queue: Optional[Queue]) -> tuple[str, str]:
    """Return the phase of the last job of a point, "" for one that is gone, and what the scheduler says of it."""
    job = job_id(entry.job or "")
    if not job or not queue:
        return "", ""
    seen = queue.look(job)
    if not seen:
        return "", ""
    return seen[0].phase, f"{seen[0].state} {seen[0].about}"


def _waited(entry: Entry, run: Run) -> Optional[float]:
    try:
        at = time.strptime(entry.submitted or "", "%Y-%m-%dT%H:%M:%S%z")
    except ValueError:
        return None
    submitted = calendar.timegm(at) - at.tm_gmtoff
    waits = [began - submitted for began in run.beginnings if began > submitted - CLOCKS_APART]
    return max(0.0, waits[0]) if waits else None


def table(states: List[PointState]) -> List[str]:
    """Return a line for each point, in columns."""
    rows = [["point", "state", "queue", "what"]]
    for state in states:
        queue = "" if state.waited is None else f"{state.waited:.0f} s"
        rows.append([state.entry.name, state.state, queue, state.about])
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]]) for row in rows]


def refuse_unknown(scheduler: str) -> None:
    """Raise a JobgenError if the jobs of a study at ``scheduler`` cannot be followed."""
    if queue_of(scheduler) is None:
        raise JobgenError(f"a study needs a scheduler that queues jobs, and {scheduler} is none: choose another site.")

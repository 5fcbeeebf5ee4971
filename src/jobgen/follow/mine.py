"""The user's waiting and running jobs on this machine's schedulers, and the runs that they belong to."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Set

from jobgen.base.errors import JobgenError
from jobgen.base.queue import JobId, Queue, Seen, job_id, tasks_of
from jobgen.jobs.runs import Run
from jobgen.schedulers import queues_here
from slipway.base import contract


class Key(NamedTuple):
    """A job, or a task of an array, of a scheduler."""

    scheduler: str
    job: JobId
    """Without a server."""


class Group(NamedTuple):
    """A job, or all waiting and running tasks of an array."""

    key: Key
    queue: Queue
    tasks: List[Seen]

    @property
    def waits(self) -> bool:
        """Whether none of the tasks runs."""
        return all(task.phase == "waiting" for task in self.tasks)

    @property
    def submitted(self) -> float:
        """Time of submission in seconds since 1970; of an array the latest that a task reports."""
        return max(task.submitted for task in self.tasks)


class Jobs:
    """The user's waiting and running jobs: one query to each scheduler for all jobs, never one for each run."""

    def __init__(self) -> None:
        """Query the schedulers whose commands are on this machine."""
        self.silent: List[JobgenError] = []
        """Errors of the schedulers that did not answer."""
        self._queues: Dict[str, Queue] = {}
        self._tasks: Dict[Key, Seen] = {}
        self._scripts: Dict[str, Key] = {}
        for queue in queues_here():
            try:
                seen = queue.mine()
            except JobgenError as error:  # noqa: PERF203 -- the queries dominate the time
                self.silent.append(error)
            else:
                self._queues[queue.name] = queue
                self._add(queue, seen)

    def _add(self, queue: Queue, seen: List[Seen]) -> None:
        arrays = {task.number for each in seen if "[]" not in each.job_id for task in tasks_of(each.job_id)}
        for each in seen:
            for task in tasks_of(each.job_id):
                if "[]" in each.job_id and task.number in arrays:  # PBS lists the array itself besides its tasks
                    continue
                self._tasks[Key(queue.name, task)] = each
                if folder := run_folder_of(each.script):
                    self._scripts[folder] = Key(queue.name, task)

    def __getitem__(self, key: Key) -> Seen:
        """Return the scheduler's record of a job that is waiting or running."""
        return self._tasks[key]

    def answers_for(self, run: Run) -> bool:
        """Return whether the list is complete for the scheduler of the run's last job."""
        return run.job is not None and run.job.scheduler in self._queues

    def of(self, run: Run) -> Optional[Key]:
        """Return the job that runs or will continue ``run``; None if no job in the queues does."""
        if not self._tasks:
            return None
        last = run.job
        if last and last.job and (key := Key(last.scheduler, last.job._replace(server=""))) in self._tasks:
            return key
        if not last and (named := job_id(run.path.name.rpartition("-")[2])):  # the run folder of an attempt to come
            keys = [Key(name, named._replace(server="")) for name in self._queues]
            if found := [key for key in keys if key in self._tasks]:
                return found[0]
        return self._scripts.get(os.path.realpath(run.path)) if self._scripts else None

    def key_of(self, scheduler: str, text: str) -> Optional[Key]:
        """Return the key of the job ``text`` if it is waiting or running."""
        job = job_id(text)
        key = Key(scheduler, job._replace(server="")) if job else None
        return key if key in self._tasks else None

    def groups(self, without: Optional[Set[Key]] = None) -> List[Group]:
        """Return the jobs, one group for all tasks of an array, except the jobs or tasks ``without``."""
        tasks: Dict[Key, Dict[str, Seen]] = {}
        for key, seen in self._tasks.items():
            if key not in (without or set()):
                whole = key._replace(job=key.job._replace(task=""))
                tasks.setdefault(whole, {})[seen.job_id] = seen
        return [Group(key, self._queues[key.scheduler], list(seen.values())) for key, seen in tasks.items()]


def run_folder_of(script: str) -> str:
    """Return the run folder whose copy of the job script was submitted; "" for any other script."""
    found = re.match(rf"(/.*?)/{re.escape(contract.JOB_SCRIPT)}(?: |$)", script)
    return str(Path(found[1]).resolve()) if found else ""

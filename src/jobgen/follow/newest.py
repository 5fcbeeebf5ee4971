"""The job or run that the user submitted last."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional

from jobgen.base.errors import JobgenError, warn
from jobgen.follow.lookup import output_folder, run_set_in, runs_here
from jobgen.follow.mine import Group, Jobs, Key, run_folder_of
from jobgen.jobs.runs import Run
from jobgen.jobs.submit import FOLDER
from jobgen.render.files import LIMIT
from jobgen.render.header import origin_of
from slipway.base.bounded_read import read_head


class Submission(NamedTuple):
    """A job or run of the user."""

    scheduler: str
    """"" or "local" without a scheduler."""
    number: int
    """Number of the job that the user submitted; a script may have submitted the present one. -1: no job."""
    time: float
    """Time of submission if the job waits or runs, or an upper bound, in seconds since 1970."""
    runs: List[Run]
    group: Optional[Group]
    """The waiting or running job, or tasks of an array; None for a run without a job in the queues."""

    def is_later(self, other: Submission) -> bool:
        """Return whether this one may have been submitted after ``other``, which has not ended.

        Numbers of one scheduler increase, unless they begin anew: an older time then proves an earlier submission.
        """
        if self.scheduler == other.scheduler and min(self.number, other.number) >= 0:
            return self.number > other.number and self.time > other.time
        return self.time > other.time

    def __str__(self) -> str:
        """Return the run folder, the job, or both."""
        last = self.runs[0].job if self.runs else None
        job = self.group.key.job if self.group else last.job if last else None
        if len(self.runs) != 1:
            return f"job {job}"
        return f"{self.runs[0].path} (job {job})" if job else str(self.runs[0].path)


def newest_job() -> Optional[Submission]:
    """Return the job that the user submitted last of those that wait or run; None without one.

    Warn of schedulers that do not answer.
    """
    jobs = Jobs()
    for error in jobs.silent:
        warn(error.slug, str(error))
    return _last(_of_groups(jobs, _all_runs())) if jobs.groups() else None


def newest_submission() -> Submission:
    """Return what the user submitted last, which waits or runs.

    Raises:
        JobgenError: if it has ended, if it is not certain which it is, or if a scheduler does not answer.
    """
    jobs = Jobs()
    if jobs.silent:  # it may have a later job
        raise jobs.silent[0]
    runs = _all_runs()
    active = _of_groups(jobs, runs)
    rest = [run for run in runs if not jobs.of(run)]
    active += [_of_run(run) for run in rest if _may_train(run, jobs)]
    known = {run.path for each in active for run in each.runs}
    ended = [_of_run(run) for run in rest if run.path not in known and run.state != "empty"]
    if not active:
        raise _over(max(ended, key=lambda each: each.time, default=None))
    last = _last(active)
    later = [each for each in ended if each.is_later(last)]
    if later:
        raise _over(max(later, key=lambda each: each.time))
    if last.group and not last.runs:
        _require_clear(last.group)
    return last


def _all_runs() -> List[Run]:
    return [run for found in runs_here() for run in _runs_of(found)]


def _may_train(run: Run, jobs: Jobs) -> bool:
    """Return whether a run may train now, of which no scheduler has listed a job."""
    return not (run.ended or run.state == "empty" or (jobs.answers_for(run) and not run.alive))


def _require_clear(group: Group) -> None:
    """Raise an error if a job without a known run may be another program's, or may be older than it seems."""
    first = group.tasks[0]
    why = "" if _is_by_jobgen(first.script) else "its script is not one of jobgen's"
    if any(task.requeued for task in group.queue.look(group.key.job)):
        why = "its time of submission is unknown since its requeue"
    if why:
        raise JobgenError(
            "unclear-newest",
            f"job {group.key.job} ({first.name}) seems to be the newest, but it has no run folder in "
            f"{output_folder()}/, and {why}: give a job number or a run folder.",
        )


def _runs_of(run: Run) -> List[Run]:
    """Return the run itself, or those of a study or sweep."""
    record = run_set_in(run.path)
    return [Run(record.run_folder(entry)) for entry in record.entries.values() if entry.job] if record else [run]


def _is_of(key: Optional[Key], group: Group) -> bool:
    return bool(key and key.scheduler == group.key.scheduler and key.job.is_in_array(group.key.job))


def _of_groups(jobs: Jobs, runs: List[Run]) -> List[Submission]:
    """Return the jobs that wait or run, each with its runs."""
    keys = [(run, jobs.of(run)) for run in runs]
    return [_of_group(group, [run for run, key in keys if _is_of(key, group)]) for group in jobs.groups()]


def _of_group(group: Group, runs: List[Run]) -> Submission:
    """Return a job with its runs; a run's first attempt precedes the time of a requeued or chained job."""
    key, number, times = group.key, int(group.key.job.number), [group.submitted]
    if not runs and (folder := run_folder_of(group.tasks[0].script)):  # outside the output folder
        runs = [Run(Path(folder))]
    for run in runs:
        origin, last = run.origin, run.job
        if origin.job and last and last.job and last.job.is_in_array(key.job):
            number, times = int(origin.job.number), [*times, origin.began]
    return Submission(key.scheduler, number, min(times), runs, group)


def _of_run(run: Run) -> Submission:
    origin, last = run.origin, run.job
    number = int(origin.job.number) if origin.job else -1
    return Submission(last.scheduler if last else "", number, origin.began, [run], None)


def _last(active: List[Submission]) -> Submission:
    """Return the last of the submissions that wait or run."""
    kinds: Dict[str, List[Submission]] = {}
    for each in active:
        kinds.setdefault(each.scheduler if each.number >= 0 else "", []).append(each)
    last = [max(each, key=lambda one: (one.number, one.time)) for each in kinds.values()]
    return max(last, key=lambda one: one.time)


def _over(last: Optional[Submission]) -> JobgenError:
    if not last:
        return JobgenError(
            "no-such-run", f"no job in a queue and no runs in {output_folder()}: give a run folder or a job number."
        )
    return JobgenError("already-ended", f"{last}, the newest run, has already ended.")


def _is_by_jobgen(script: str) -> bool:
    """Return whether jobgen wrote the submitted script, according to its temporary folder or its header."""
    if re.search(rf"/{re.escape(FOLDER)}[a-z0-9_]{{8}}/[^/]+\.(job|pbs)( |$)", script):
        return True
    words = script.split(" ")
    for count in range(1, len(words) + 1):  # the path may contain blanks, and arguments may follow
        try:
            text = read_head(Path(" ".join(words[:count])), limit=LIMIT).decode(errors="replace")
        except (OSError, ValueError):
            continue
        return origin_of(text).startswith("jobgen render ")
    return False

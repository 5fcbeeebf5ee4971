"""``jobgen status``, ``logs`` and ``cancel`` for a job or a run folder, with or without a scheduler."""

from __future__ import annotations

import json
import math
import re
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from jobgen.base.errors import JobgenError, note, say
from jobgen.base.queue import JobId, Queue, Seen, job_id
from jobgen.batch.record import RunSet
from jobgen.batch.states import states_of
from jobgen.batch.study import record as studies
from jobgen.batch.study.record import Study
from jobgen.batch.sweep import results as sweeps
from jobgen.batch.sweep.record import Sweep
from jobgen.follow.log_printer import LogPrinter
from jobgen.follow.lookup import newest_run, output_folder, run_set_in, runs_in_logs, runs_of, runs_with_suffix
from jobgen.follow.newest import Submission, newest_job, newest_submission
from jobgen.follow.tasks import lines_of_jobs, lines_of_runs
from jobgen.jobs.runs import Run
from jobgen.schedulers import queue_of, queues_here
from slipway.base.errors import add_label

POLL = 0.2
"""Seconds between reads of a log."""
ASK = 5.0
"""Seconds between queries to the scheduler, to limit its load."""


class Target(NamedTuple):
    """The job and runs that the user's argument refers to."""

    job: Optional[JobId]
    runs: List[Run]
    """The job's run, or one for each task of an array; empty if not found on this machine."""
    scheduler: str
    """Scheduler in the run folder, or the one that has the job; "" if unknown, "local" for a run without scheduler."""
    queue: Optional[Queue]
    """That scheduler's queue, if its commands are on this machine."""

    def look(self) -> List[Seen]:
        """Query the scheduler for the job; return [] if it has no record or cannot be queried here.

        Raises:
            JobgenError: if the scheduler does not answer.
        """
        return self.queue.look(self.job) if self.queue and self.job else []

    def read_anew(self) -> Target:
        """Return the target with runs whose files are read again."""
        return self._replace(runs=[Run(run.path) for run in self.runs])

    def continued(self) -> Target:
        """Return the target with the job that continues its run (PBS: the next of a chain), or unchanged."""
        last = self.runs[0].job if len(self.runs) == 1 else None
        return self._replace(job=last.job) if last and last.job else self

    def require_single_run(self) -> None:
        """Raise an error if the target has more than one run.

        Raises:
            JobgenError: if it has several.
        """
        if len(self.runs) > 1:
            paths = ", ".join(str(run.path) for run in self.runs[:3])
            raise JobgenError(
                "several-runs", f"job {self.job} has {len(self.runs)} runs: give one of their run folders: {paths} ..."
            )

    def __str__(self) -> str:
        """Return "job NUMBER", or the path of the run folder."""
        return f"job {self.job}" if self.job and (self.queue or not self.runs) else str(self.runs[0].path)


def status(name: str, *, as_json: bool) -> int:
    """Print the state of a job and its run, a study or a sweep; ``as_json``: one object for each run."""
    record = run_set_in(Path(name)) if name else None
    if as_json:
        print(json.dumps(_facts(record, name), indent=2))
    elif isinstance(record, Study):
        for line in studies.lines_of(states_of(record)):
            say(line)
    elif isinstance(record, Sweep):
        for line in sweeps.lines_of(record, sweeps.results_of(record)):
            say(line)
    else:
        _show(*target_of(name))
    return 0


def _facts(record: Optional[RunSet[Any, Any]], name: str) -> List[Dict[str, Any]]:
    """Return the facts of each run that ``name`` refers to; for ``record``, with the states of its table."""
    if record:
        return [{**each.run.facts(), "state": each.state, "line": each.about} for each in states_of(record)]
    return [run.facts() for run in target_of(name)[0].runs]


def _show(target: Target, seen: Optional[List[Seen]]) -> None:
    """Print the scheduler's state of the job, the progress of its runs, and the path of its log."""
    if seen is None:
        try:
            seen = target.look()
        except JobgenError as error:  # the run folder still has the state
            say(add_label("warning", error.slug, str(error)))
            seen = []
        else:
            if target.job and not seen and target.scheduler not in {"", "local"}:
                here = "has no record of it (any more)" if target.queue else "cannot be queried from this machine"
                say(f"job {target.job}: {target.scheduler} {here}")
    for line in [*lines_of_jobs(seen), *lines_of_runs(target.runs, target.job)]:
        say(line)
    log = _log(seen)
    shown = next((path for path in [*log, *_streams(target)] if path.exists()), log[0] if log else None)
    if shown and len(target.runs) <= 1:
        say(f"log {shown}")


def logs(name: str, *, follow: bool) -> int:
    """Print the job's log; with ``follow``, print new output until the job, and the jobs that continue its run, end.

    Raises:
        JobgenError: if the job has ended and its log cannot be found.
    """
    target, seen = looked_up(name)
    target.require_single_run()
    name = name or str(target.job or target.runs[0].path)
    printer, asked, said, log = LogPrinter(), time.monotonic(), "", _log(seen)
    while True:
        over = not follow or has_ended(target, seen)  # check before reading, so that no output is missed
        log = _log(seen) or log
        path = next((each for each in [*log, *_streams(target)] if each.is_file()), None)
        if (why := _waiting_message(seen) or _late_log(log, path, target)) != said:
            said = why
            if why:
                note(why)
        if path:
            printer.print_new(path, is_stream=path not in log)
        elif over:
            raise JobgenError("no-log", f"cannot find a log of {target} on this machine.")
        if over:
            if not follow or target.continued().job == target.job:
                return 0
            name, asked, log = str(target.runs[0].path), -math.inf, []
        time.sleep(POLL)
        if time.monotonic() - asked > ASK:
            (target, seen), asked = _looked_up_again(name, target, seen), time.monotonic()
        else:
            target = target.read_anew()


def _looked_up_again(name: str, target: Target, seen: List[Seen]) -> Tuple[Target, List[Seen]]:
    """Return ``looked_up(name)``; unchanged if the scheduler does not answer now, without records if it has none."""
    try:
        target, seen = looked_up(name)
    except JobgenError as error:
        if error.slug == "no-such-job":
            return target, []
        if error.slug != "scheduler-silent":
            raise
    target.require_single_run()
    return target, seen


def cancel(name: str) -> int:
    """Cancel the job so that its ranks save first; return the exit code.

    Without ``name``: what the user submitted last, also a job that has no run folder yet, but nothing older.

    Raises:
        JobgenError: if the job has ended, or cannot be cancelled from this machine; without ``name`` also if it is not
            certain which job or run was submitted last.
    """
    newest = _newest() if not name else None
    target, seen = (newest, newest.look()) if newest else looked_up(name)
    if has_ended(target, seen):
        raise JobgenError("already-ended", f"{target} has already ended.")
    if target.job and target.queue and seen:
        command = target.queue.cancel(target.job, seen)
        done = subprocess.run(command, check=False)
        if not done.returncode:
            note(f"job {target.job}: {command[0]} cancels it; {_outcome(target.runs)}")
        return done.returncode
    target.require_single_run()
    run = target.runs[0]  # without runs, a scheduler on this machine has the job, and it was cancelled above
    try:
        run.stop.write_text("user\n", encoding="ascii")  # also works for local runs on another machine
    except OSError as error:
        raise JobgenError("cannot-write", f"cannot write {run.stop}: {error.strerror}.") from error
    obeyed = "; a user script without slipway.Session ignores that file: stop it with Ctrl-C" if run.foreign else ""
    note(f"{run.path} was requested to save and stop by the file {run.stop.name}{obeyed}")
    return 0


def _outcome(runs: List[Run]) -> str:
    """Return what a cancelled job leaves, as a clause."""
    if runs and all(run.foreign for run in runs):
        return "it saves nothing: its script does not use slipway.Session"
    again = f"; `jobgen run {shlex.quote(str(runs[0].path))}` continues the run" if len(runs) == 1 else ""
    return f"the ranks save first{again}"


def _newest() -> Target:
    """Return the job or run that the user submitted last, and print which it is."""
    newest = newest_submission()
    note(f"the newest run is {newest}")
    return _of_submission(newest)


def _of_submission(submission: Submission) -> Target:
    if submission.group:
        job, queue = submission.group.key.job, submission.group.queue
        return Target(job, runs_of(job, output_folder()) or submission.runs, queue.name, queue)
    last = submission.runs[0].job
    return _of(last.job if last else None, submission.runs, submission.scheduler)


def looked_up(name: str) -> Tuple[Target, List[Seen]]:
    """Return the target of ``name`` and the scheduler's records of it; its files are read after the query.

    Raises:
        JobgenError: if there is none, or the scheduler does not answer.
    """
    target, seen = target_of(name)
    seen = target.look() if seen is None else seen
    return target.read_anew() if target.queue else target, seen


def target_of(name: str) -> Tuple[Target, Optional[List[Seen]]]:
    """Return the target of ``name``, and the scheduler's answer if finding the target required a query, else None.

    Without ``name``: the job that the user submitted last, if it waits or runs, or else the run that changed last.
    """
    if not name and (newest := newest_job()):
        return _of_submission(newest), None
    if name and (Study.is_in(Path(name)) or Sweep.is_in(Path(name))):
        raise JobgenError("several-runs", f"{name} contains many runs: give one of its run folders, or a job number.")
    if not name or Path(name).is_dir():
        run = Run(Path(name)) if name else newest_run()
        last = run.job
        job, runs = last.job if last else None, [run]
        if job and job.task and not name:  # all tasks of the newest array
            job = job._replace(task="")
            runs = runs_of(job, output_folder())
        return _of(job, runs, last.scheduler if last else ""), None
    job = job_id(name)
    if not job:
        if re.match(r"\d", name) and (runs := runs_with_suffix(name)):
            return _of(None, runs, ""), None
        raise JobgenError("no-such-run", f"{name!r} is neither a run folder nor a job number.")
    runs = runs_of(job, output_folder())
    for run in runs:
        started = run.started_by(job)
        queue = queue_of(started.scheduler) if started else None
        if job.server and queue and not queue.servers:  # another scheduler's job with the same number
            return _asked(job, [])
        if started:
            return _of(job, runs, started.scheduler), None
    return _asked(job, runs)


def _of(job: Optional[JobId], runs: List[Run], scheduler: str) -> Target:
    queue = queue_of(scheduler)
    return Target(job, runs, scheduler, queue if queue in queues_here() else None)


def _asked(job: JobId, runs: List[Run]) -> Tuple[Target, Optional[List[Seen]]]:
    """Query each scheduler on this machine for ``job``; there may be two, and one may not answer."""
    known: List[Tuple[Queue, List[Seen]]] = []
    away: List[JobgenError] = []
    here = queues_here()
    for queue in here:
        try:
            seen = queue.look(job)
        except JobgenError as error:  # noqa: PERF203 -- the queries dominate the time
            away.append(error)
        else:
            known += [(queue, seen)] if seen else []
    names = " and ".join(queue.name for queue in here)
    if len(known) > 1:
        raise JobgenError(
            "several-runs", f"{names} both have a job {job}: give its run folder, or its number with the PBS server."
        )
    if known:
        queue, seen = known[0]
        found = job_id(seen[0].job_id)  # an array task may be given by its raw Slurm job ID
        meant = found if found and found.number != job.number else job
        runs = runs or runs_of(meant, Path(seen[0].folder, output_folder())) or runs_in_logs([job.log for job in seen])
        return Target(job, runs, queue.name, queue), seen
    if runs:
        return _of(job, runs, here[0].name if len(here) == 1 else ""), None
    if away:
        raise away[0]
    if not here:
        raise JobgenError(
            "no-such-job",
            f"no scheduler on this machine has job {job}: run this on a login node, or give a run folder.",
        )
    verb = "does" if len(here) == 1 else "do"
    raise JobgenError(
        "no-such-job", f"{names} {verb} not have job {job} (any more), and {output_folder()}/ has no run of it."
    )


def has_ended(target: Target, seen: List[Seen]) -> bool:
    """Return whether the job has ended; ``seen``: the scheduler's records of it, else the files of its runs decide."""
    if seen:
        return all(job.phase == "ended" for job in seen)
    return target.queue is not None or (bool(target.runs) and all(run.ended for run in target.runs))


def _waiting_message(seen: List[Seen]) -> str:
    waiting = [f"job {job.job_id} is {job.state} {job.about}".rstrip() for job in seen if job.phase == "waiting"]
    return waiting[0] if waiting else ""


def _late_log(log: List[Path], path: Optional[Path], target: Target) -> str:
    """Return a message if ``path`` is the ranks' output, until the scheduler delivers the ``log`` of a running job."""
    is_late = path and path not in log and target.queue and target.queue.delivers_log
    return f"{log[0]} appears at the end of the job; until then, this is {path}" if log and is_late else ""


def _log(seen: List[Seen]) -> List[Path]:
    """Return the path of the job's log, if the scheduler has a record of it."""
    return [Path(job.log) for job in seen if job.log]


def _streams(target: Target) -> List[Path]:
    """Return the paths of what the ranks of the job's last attempt print."""
    return [path for run in target.runs[:1] for path in run.streams(target.job)]

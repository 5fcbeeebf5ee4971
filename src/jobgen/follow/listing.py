"""``jobgen list``: the runs of the output folder and the user's jobs, the newest first."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections import Counter
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from jobgen.base.errors import JobgenError, note, say, warn
from jobgen.batch.record import RunSet
from jobgen.batch.states import table
from jobgen.follow.lookup import output_folder, run_set_in, runs_here
from jobgen.follow.mine import Group, Jobs, Key
from jobgen.follow.tasks import counted
from jobgen.jobs.runs import Run

SHOWN = 20
"""Runs that are listed without ``--all``, besides those that wait or run."""
NAME = 8
"""Width to which a narrow terminal reduces the column of names."""
COLUMNS = ["name", "state", "step", "job", "age", "folder"]
ORDER = ("running", "started", "starting", "pending", "failed", "crashed", "missing")
"""States of a study's or sweep's runs, in the order in which one of them is the state of the whole."""


class Entry(NamedTuple):
    """A run, a study or sweep, or a job without a run folder."""

    changed: float
    """Time of the last change, or of the job's submission, in seconds since 1970."""
    queued: bool
    """Whether one of its jobs waits or runs."""
    facts: Callable[[], Dict[str, Any]]
    """Reads the files and returns the JSON object."""


def list_runs(*, as_json: bool, every: bool) -> int:
    """Print the newest runs and all that wait or run; ``every``: all runs; ``as_json``: one object for each."""
    jobs = Jobs()
    for error in jobs.silent:
        warn(error.slug, str(error))
    entries = sorted(_entries(jobs), key=lambda entry: -entry.changed)
    shown = [entry for place, entry in enumerate(entries) if every or place < SHOWN or entry.queued]
    facts = [{**entry.facts(), "changed": _iso(entry.changed)} for entry in shown]
    if as_json:
        sys.stdout.write(f"{json.dumps(facts, indent=2)}\n")
    elif facts:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        ages = [_age(time.time() - entry.changed) for entry in shown]
        for line in _lines([COLUMNS, *(_row(each, age) for each, age in zip(facts, ages))], width):
            say(line)
    if not entries:
        note(f"no runs in {output_folder()}")
    elif len(entries) > len(shown):
        note(f"{len(entries) - len(shown)} more: --all lists them")
    return 0


def _entries(jobs: Jobs) -> List[Entry]:
    found: List[Entry] = []
    claimed: Set[Key] = set()
    for run in runs_here():
        record = _record(run)
        runs = _runs_of(record, jobs) if record else [(run, jobs.of(run))]
        claimed.update(key for _, key in runs if key)
        queued = any(key for _, key in runs)
        facts = partial(_of_set, record, runs, jobs) if record else partial(_of_run, run, runs[0][1], jobs)
        changed = max([run.changed, *(each.changed for each, _ in runs), _written(record)])
        found.append(Entry(changed, queued, facts))
    return found + [Entry(group.submitted, True, partial(_of_group, group)) for group in jobs.groups(claimed)]


def _record(run: Run) -> Optional[RunSet[Any, Any]]:
    """Return the study or sweep in a folder of the output folder; None if there is none, or with a warning."""
    try:
        return run_set_in(run.path)
    except JobgenError as error:
        warn(error.slug, str(error))
        return None


def _runs_of(record: RunSet[Any, Any], jobs: Jobs) -> List[Tuple[Run, Optional[Key]]]:
    """Return the submitted runs of a study or sweep, each with its job if that waits or runs."""
    entries = [entry for entry in record.entries.values() if entry.job]
    runs = [Run(record.run_folder(entry)) for entry in entries]
    keys = [jobs.key_of(record.head.scheduler, entry.job) for entry in entries]
    return [(run, key or jobs.of(run)) for run, key in zip(runs, keys)]


def _written(record: Optional[RunSet[Any, Any]]) -> float:
    try:
        return record.path.stat().st_mtime if record else 0.0
    except OSError:  # removed since
        return 0.0


def _of_run(run: Run, key: Optional[Key], jobs: Jobs) -> Dict[str, Any]:
    """Return the facts of a run; its job's state replaces that of the files if the job waits or has just begun."""
    facts, last = run.facts(), run.job
    job, scheduler = (str(last.job or ""), last.scheduler) if last else ("", "")
    if key:
        seen, job, scheduler = jobs[key], str(key.job), key.scheduler
        if seen.phase == "waiting" and not run.alive:
            facts.update(state="pending", line=f"job {job}: {seen.state} {seen.about}; {facts['line']}")
        elif facts["state"] == "empty":
            facts["state"] = "starting"
    return {**facts, "name": run.name, "job": job, "scheduler": scheduler}


def _of_set(record: RunSet[Any, Any], runs: List[Tuple[Run, Optional[Key]]], jobs: Jobs) -> Dict[str, Any]:
    """Return the facts of a study or sweep: the most urgent state of its runs, and a line that counts them."""
    every = [_of_run(run, key, jobs) for run, key in runs]
    counts = Counter({"missing": len(record.entries) - len(runs)} if len(runs) < len(record.entries) else {})
    counts.update(facts["state"] for facts in every)
    others = [state for state in counts if state != "done"]
    numbers = {key.job.number for _, key in runs if key} or {facts["job"].partition("_")[0] for facts in every} - {""}
    return {
        "path": str(record.folder),
        "state": next((state for state in ORDER if counts[state]), [*others, "done"][0]),
        "slug": "",
        "attempt": 0,
        "step": 0,
        "line": f"{record.kind} of {len(record.entries)} runs: {counted(counts)}",
        "name": record.folder.name,
        "job": numbers.pop() if len(numbers) == 1 else "",
        "scheduler": record.head.scheduler,
    }


def _of_group(group: Group) -> Dict[str, Any]:
    """Return the facts of a job without a run folder, or of an array's tasks without one."""
    return {
        "path": "",
        "state": "pending" if group.waits else "running",
        "slug": "",
        "attempt": 0,
        "step": 0,
        "line": "; ".join(f"job {task.job_id}: {task.state} {task.about}" for task in group.tasks[:3]),
        "name": group.tasks[0].name,
        "job": str(group.key.job),
        "scheduler": group.key.scheduler,
    }


def _row(facts: Dict[str, Any], age: str) -> List[str]:
    step = str(facts["step"] or "-")
    return [facts["name"], facts["state"], step, facts["job"] or "-", age, facts["path"] or "-"]


def _lines(rows: List[List[str]], width: Optional[int]) -> List[str]:
    """Return aligned columns; names are cut as far as lines would exceed ``width``, but folders never."""
    lines = table(rows)
    over = max(map(len, lines)) - width if width else 0
    if over <= 0:
        return lines
    room = max(NAME, max(len(row[0]) for row in rows) - over)
    cut = [row[0] if len(row[0]) <= room else f"{row[0][: room - 3]}..." for row in rows]
    return table([[name, *row[1:]] for name, row in zip(cut, rows)])


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(seconds))

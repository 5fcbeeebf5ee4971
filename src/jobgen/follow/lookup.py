"""Which run folders there are, and which of them a job or a name means."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import List, Tuple

from jobgen.base.errors import JobgenError
from jobgen.base.queue import JobId, job_id
from jobgen.jobs.runs import Run
from slipway.base.bounded_read import read_start

LOG_START = 1 << 16
"""Bytes of a log in which its script says where the run is: behind what modules and a prologue say."""


def output_folder() -> Path:
    """Return the folder in which run folders are made."""
    return Path(os.environ.get("SLIPWAY_OUTPUT") or "runs")


def newest_run() -> Run:
    """Return the run in which something happened last.

    Raises:
        JobgenError: if there is none.
    """
    runs = _runs_in(output_folder())
    if not runs:
        where = "" if os.environ.get("SLIPWAY_OUTPUT") else ", or set SLIPWAY_OUTPUT to your site's output"
        raise JobgenError(
            "no-such-run", f"no run in {output_folder()}: name a run folder or the number of a job{where}."
        )
    return max(runs, key=lambda run: run.changed)


def runs_of(job: JobId, folder: Path) -> List[Run]:
    """Return the runs in ``folder`` that ``job`` worked in: one, or those of an array's tasks.

    A job that continues another's run is known by the run's last attempt.
    """
    runs = _runs_in(folder)
    continued = [run for run in runs if (found := run.job) and found.job and found.job.of_array(job)]
    suffixes = [run for run in runs if _suffix(run, job)]
    return sorted({run.path: run for run in [*continued, *suffixes]}.values(), key=_order)


def runs_said_in(logs: List[str]) -> List[Run]:
    """Return the runs that job scripts name in the first lines of their logs.

    So they are found where a site's file says where run folders are made.
    """
    found: List[Run] = []
    for log in filter(None, logs):
        try:
            text = read_start(log, limit=LOG_START).decode(errors="replace")
        except (OSError, ValueError):  # not there yet, or on a node; or no path
            continue
        if said := re.search(r"(?m)^[\w.-]+: attempt [0-9]+ in (/.*), library \S+ \(sha256 ", text):
            found.append(Run(Path(said[1])))
    return found


def runs_named(suffix: str) -> List[Run]:
    """Return the runs whose names end with ``suffix``, as those of this machine with date and process number."""
    return [run for run in _runs_in(output_folder()) if run.path.name.endswith(f"-{suffix}")]


def _suffix(run: Run, job: JobId) -> bool:
    found = job_id(run.path.name.rpartition("-")[2])
    return bool(found and found.of_array(job))


def _order(run: Run) -> Tuple[int, str]:
    number = run.path.name.rpartition("_")[2]
    return int(number) if number.isascii() and number.isdigit() else 0, str(run.path)


def _runs_in(folder: Path) -> List[Run]:
    try:
        return [Run(folder / entry.name) for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return []

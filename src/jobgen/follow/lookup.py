"""Lookup of run folders: the newest, those of a job, and those with a given name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, List, Optional, Tuple, Type

from jobgen.base.errors import JobgenError
from jobgen.base.queue import JobId, job_id
from jobgen.batch.record import RunSet
from jobgen.batch.study.record import Study
from jobgen.batch.sweep.record import Sweep
from jobgen.jobs.runs import Run
from jobgen.render.files import site_of
from jobgen.resolve.search import default_site
from slipway.base.bounded_read import read_head

LOG_START = 1 << 16
"""Bytes at the start of a log in which the job script prints the run folder, after output of modules and a prologue."""


def output_folder() -> Path:
    """Return the folder of run folders: SLIPWAY_OUTPUT, or ``output`` of the default site, or runs.

    A default site that cannot be read counts as none: a job can be followed and cancelled without it.
    """
    if named := os.environ.get("SLIPWAY_OUTPUT"):
        return Path(named)
    try:
        found = default_site(os.environ)
        site = site_of(found.site, []) if found else None
    except JobgenError:
        site = None
    return Path(os.path.expandvars(site.output) if site else "runs")


def newest_run() -> Run:
    """Return the run that changed last.

    Raises:
        JobgenError: if there are no runs.
    """
    runs = runs_here()
    if not runs:
        where = "" if os.environ.get("SLIPWAY_OUTPUT") else ", or set SLIPWAY_OUTPUT to the folder of your runs"
        raise JobgenError("no-such-run", f"no runs in {output_folder()}: give a run folder or a job number{where}.")
    return max(runs, key=lambda run: run.changed)


def runs_here() -> List[Run]:
    """Return the runs in the output folder, in no order; studies and sweeps in it count as runs."""
    return _runs_in(output_folder())


def run_set_in(folder: Path) -> Optional[RunSet[Any, Any]]:
    """Return the study or sweep in ``folder``, which need not exist; None if there is none.

    Raises:
        JobgenError: if its file cannot be read.
    """
    kinds: List[Type[RunSet[Any, Any]]] = [Study, Sweep]
    kind = next((kind for kind in kinds if kind.is_in(folder)), None)
    return kind.read(folder) if kind else None


def runs_of(job: JobId, folder: Path) -> List[Run]:
    """Return the runs in ``folder`` that ``job`` ran: one, or one for each task of an array.

    A run belongs to ``job`` if its name ends with the job number, or if ``job`` ran its last attempt.
    """
    runs = _runs_in(folder)
    continued = [run for run in runs if (found := run.job) and found.job and found.job.is_in_array(job)]
    suffixes = [run for run in runs if _suffix(run, job)]
    return sorted({run.path: run for run in [*continued, *suffixes]}.values(), key=_order)


def runs_in_logs(logs: List[str]) -> List[Run]:
    """Return the runs that job scripts print in the first lines of ``logs``.

    This finds runs outside the output folder, such as in a folder that the site file sets.
    """
    found: List[Run] = []
    for log in filter(None, logs):
        try:
            text = read_head(log, limit=LOG_START).decode(errors="replace")
        except (OSError, ValueError):  # missing, on another node, or an invalid path
            continue
        if said := re.search(r"(?m)^[\w.-]+: attempt [0-9]+ in (/.*), library \S+ \(sha256 ", text):
            found.append(Run(Path(said[1])))
    return found


def runs_with_suffix(suffix: str) -> List[Run]:
    """Return the runs whose names end with ``-suffix``: local runs, with the date and process number."""
    return [run for run in _runs_in(output_folder()) if run.path.name.endswith(f"-{suffix}")]


def _suffix(run: Run, job: JobId) -> bool:
    found = job_id(run.path.name.rpartition("-")[2])
    return bool(found and found.is_in_array(job))


def _order(run: Run) -> Tuple[int, str]:
    number = run.path.name.rpartition("_")[2]
    return int(number) if number.isascii() and number.isdigit() else 0, str(run.path)


def _runs_in(folder: Path) -> List[Run]:
    try:
        return [Run(folder / entry.name) for entry in os.scandir(folder) if entry.is_dir()]
    except OSError:
        return []

"""``jobgen status``, ``logs`` and ``cancel``: a submitted job or a run folder, with or without a scheduler."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import List, NamedTuple, Optional

from jobgen.errors import JobgenError
from jobgen.runs import Run, find_run
from jobgen.schedulers.queue import Queue, Seen, queue_here, queues

POLL = 0.2
"""Seconds between two looks at a log."""
ASK = 5.0
"""Seconds between two questions to the scheduler, which has others to answer."""


class Target(NamedTuple):
    """What a person named: a job, a run, or one by the other."""

    job_id: str
    run: Optional[Run]
    queue: Optional[Queue]
    """The scheduler that knows the job; None: none does, or it is not on this machine."""

    def look(self) -> List[Seen]:
        """Return what the scheduler knows of the job."""
        return self.queue.look(self.job_id) if self.queue and self.job_id else []


def status(name: str) -> int:
    """Print a line on the job, one on its run, and where its log is."""
    target = _target(name)
    seen = target.look()
    for job in seen:
        print(f"job {job.job_id}: {job.state} {job.about}")
    if target.queue and target.job_id and not seen:
        print(f"job {target.job_id}: {target.queue.name} does not know it (any more)")
    if target.run:
        print(f"run {target.run.path}: {target.run.describe()}")
        if target.run.stop.exists():
            print("    it has been asked to stop, by its file STOP")
    if log := _log(target, seen):
        print(f"log {log}")
    return 0


def logs(name: str, *, follow: bool) -> int:
    """Print the job's log; with ``follow``, what comes too, until the job has ended.

    Raises:
        JobgenError: if there is no log, and none to wait for.
    """
    target = _target(name)
    seen = target.look()
    position, asked, told = 0, time.monotonic(), ""
    while True:
        over = not follow or _over(target, seen)  # asked before the log is read, so that nothing is missed
        path = _log(target, seen)
        if path and path.exists():
            position = _copy(path, position)
        elif over:
            raise JobgenError(f"no log of {_named(target)} can be found here.")
        if over:
            return 0
        if (why := _waits(seen)) != told:
            told = why
            sys.stderr.write(why)
        time.sleep(POLL)
        if time.monotonic() - asked > ASK:
            seen, asked = target.look(), time.monotonic()


def cancel(name: str) -> int:
    """End the job so that its ranks save first.

    Raises:
        JobgenError: if it has ended, or nobody here can end it.
    """
    target = _target(name)
    seen = target.look()
    if _over(target, seen):
        raise JobgenError(f"{_named(target)} has ended: there is nothing to cancel.")
    if target.queue and seen:
        done = subprocess.run(target.queue.cancel(target.job_id), check=False)
        if not done.returncode:
            print(f"jobgen: job {target.job_id} is told to end; what it trains is saved first", file=sys.stderr)
        return done.returncode
    if not target.run:
        raise JobgenError(f"nobody here knows {_named(target)}: cancel it on a login node of its cluster.")
    try:
        target.run.stop.write_text("user\n", encoding="ascii")  # of this machine's own runs; also from far away
    except OSError as error:
        raise JobgenError(f"cannot write {target.run.stop}: {error.strerror}.") from error
    print(f"jobgen: {target.run.path} is asked to save and stop, by its file STOP", file=sys.stderr)
    return 0


def _target(name: str) -> Target:
    run = find_run(name)
    if run and (not name or Path(name).is_dir()):
        marks = {queue.mark for queue in queues() if re.search(rf"(?m)^{queue.mark} ", run.script)}
        here = queue_here()
        return Target(run.job_id, run, here if here and here.mark in marks else None)
    if not re.match(r"\d", name):
        raise JobgenError(f"{name!r} is neither a run folder nor the number of a job.")
    here = queue_here()
    if not here and not run:
        raise JobgenError(f"no scheduler on this machine knows job {name}: ask on a login node, or name a run folder.")
    target = Target(name, run, here)
    seen = target.look()
    if not run and not seen:
        raise JobgenError(f"{here.name if here else ''} does not know job {name} (any more), nor is it in runs/.")
    if not run and (folders := sorted(Path(seen[0].folder, "runs").glob(f"*-{seen[0].job_id.partition('.')[0]}"))):
        return target._replace(run=Run(folders[0]))
    return target


def _named(target: Target) -> str:
    return f"job {target.job_id}" if target.job_id and target.queue else f"{target.run.path if target.run else ''}"


def _over(target: Target, seen: List[Seen]) -> bool:
    if seen:
        return all(job.phase == "ended" for job in seen)
    return bool(target.run and target.run.ended) or target.queue is not None


def _waits(seen: List[Seen]) -> str:
    waiting = [job for job in seen if job.phase == "waiting"]
    return f"jobgen: job {waiting[0].job_id} is {waiting[0].state} {waiting[0].about}\n" if waiting else ""


def _log(target: Target, seen: List[Seen]) -> Optional[Path]:
    """Return the job's output, or else what its ranks said on standard error."""
    found = [Path(job.log) for job in seen if job.log]
    if target.run and not any(path.exists() for path in found):
        found.append(target.run.errors)
    return next((path for path in found if path.exists()), found[0] if found else None)


def _copy(path: Path, position: int) -> int:
    """Copy ``path`` from ``position`` on to standard output and return its new end."""
    with path.open("rb") as file:
        if file.seek(0, 2) < position:  # begun anew by the next attempt
            position = 0
        file.seek(position)
        while piece := file.read(1 << 16):
            sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        return file.tell()

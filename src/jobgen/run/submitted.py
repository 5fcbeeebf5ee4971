"""What ``jobgen.Job.submit`` returns: a submitted job, its state, and its run."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from jobgen.base.errors import JobgenError
from jobgen.base.queue import Seen
from jobgen.follow.commands import ASK, POLL, Target, cancel, has_ended, looked_up
from jobgen.jobs.run_files import parsed
from jobgen.jobs.runs import Run
from slipway.base.contract import METRICS

WITHOUT_END = {"empty": "failed", "starting": "failed", "started": "crashed", "running": "crashed"}
"""States of a run whose job may have ended without a record of it, and the state that it then has."""


class SubmittedRun:
    """A job and its run. Each property reads the run folder and queries the scheduler anew."""

    def __init__(self, name: str, *, process: Optional[subprocess.Popen[bytes]] = None) -> None:
        """Refer to the run of ``name``, a job number or a run folder; ``process``: what runs it on this machine."""
        self.name = name
        """The job number; without a scheduler, the run folder."""
        self._process = process

    @property
    def state(self) -> str:
        """State in one word: pending, starting, started, running, done, stopped, out-of-time, failed, crashed.

        ``started``: the script does not use ``slipway.Session``, or has not opened it, so its progress is unknown. If
        the job has ended and recorded no end, it is ``failed`` before the ranks started, and ``crashed`` after that.

        Raises:
            JobgenError: if neither a scheduler nor a run folder has the job, or the scheduler does not answer; for an
                array, which has several runs.
        """
        return self._state_of(*self._look())

    @property
    def folder(self) -> Optional[Path]:
        """Absolute path of the run folder; None until the job has started.

        Raises:
            JobgenError: for an array, which has several.
        """
        run = self._only_run(self._look()[0])
        return run.path.absolute() if run else None

    @property
    def step(self) -> int:
        """The last step that was recorded or saved; 0 before the first."""
        run = self._only_run(self._look()[0])
        return int(run.facts()["step"]) if run else 0

    def metrics(self) -> List[Dict[str, Any]]:
        """Return the records of the run's metrics.jsonl, in order; [] before the first.

        A line that is not complete yet is left out.
        """
        folder = self.folder
        try:
            lines = (folder / METRICS).read_text(encoding="utf-8").splitlines() if folder else []
        except FileNotFoundError:
            return []
        return [record for line in lines if (record := parsed(line))]

    def wait(self, timeout: Optional[float] = None) -> str:
        """Wait until the job ends, also over its requeues, and return its state.

        Args:
            timeout: maximum seconds to wait; None: no limit.

        Raises:
            TimeoutError: after ``timeout`` seconds. The job continues.
            JobgenError: if neither a scheduler nor a run folder has the job any more.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self._answer()
            if found and self._has_ended(*found):
                return self._state_of(*found)
            pause = POLL if self._process else ASK
            rest = pause if deadline is None else deadline - time.monotonic()
            if rest <= 0:
                raise TimeoutError(f"{self.name} has not ended after {timeout} s")
            time.sleep(min(pause, rest))

    def cancel(self) -> None:
        """Save and stop the job.

        Raises:
            JobgenError: if it has ended, or cannot be cancelled from this machine.
        """
        if self._process and self._process.poll() is None and not Run(Path(self.name)).has_session:
            os.killpg(self._process.pid, signal.SIGTERM)  # nothing reads the file STOP yet, or ever
        elif code := cancel(self.name):
            raise JobgenError("scheduler-silent", f"the scheduler did not cancel {self.name} (exit code {code}).")

    def __repr__(self) -> str:
        """Return the job number or run folder."""
        return f"SubmittedRun({self.name!r})"

    def _answer(self) -> Optional[Tuple[Target, List[Seen]]]:
        """Return ``_look()``; None if the scheduler does not answer, as it may a little later."""
        try:
            return self._look()
        except JobgenError as error:
            if error.slug != "scheduler-silent":
                raise
            return None

    def _state_of(self, target: Target, seen: List[Seen]) -> str:
        run = self._only_run(target)
        if any(job.phase == "waiting" for job in seen):
            return "pending"
        state = run.state if run else "empty"
        if state in WITHOUT_END and self._has_ended(target, seen):
            return WITHOUT_END[state]
        return "starting" if state == "empty" else state

    def _has_ended(self, target: Target, seen: List[Seen]) -> bool:
        return self._process.poll() is not None if self._process else has_ended(target, seen)

    def _look(self) -> Tuple[Target, List[Seen]]:
        target, seen = looked_up(self.name)
        following = target.continued()
        if following.job != target.job and has_ended(target, seen):
            seen = following.look()
            return following.read_anew(), seen
        return target, seen

    def _only_run(self, target: Target) -> Optional[Run]:
        target.require_single_run()
        return target.runs[0] if target.runs else None

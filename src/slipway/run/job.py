"""The job folder of a run, which the job script reads: RUN_DIR, even if the run is in another folder, such as a fold's.

A run in another folder is listed in RUN_DIR/sessions, so that the job script finds its checkpoints. It obeys
RUN_DIR/STOP. It also writes a verdict to RUN_DIR, unless it is done: other runs may follow, and the user script's exit
code reports the result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from slipway.base.bounded_read import read_whole
from slipway.base.contract import SESSIONS, STOP, verdict_file
from slipway.base.environment import Environment
from slipway.base.stop import Reason, read_stop_file
from slipway.run.status import Status, write_verdict


class JobFolder:
    """The folder that a run's job script reads; without a job, the run folder."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        """Compare the run folder ``folder`` with RUN_DIR."""
        self.number = environment.attempt
        """The attempt's number, given by the job script; 0 without one."""
        self._id = environment.job_id
        self._run = folder
        run_dir = Path(environment.run_dir).absolute() if self.number and environment.run_dir else folder
        self.has_other_run_folder = os.path.realpath(run_dir) != os.path.realpath(folder)
        """Whether the run folder is not RUN_DIR."""
        self.folder = run_dir if self.has_other_run_folder else folder
        """RUN_DIR, or the run folder without a job."""

    def withdraw_verdict(self, before: Status | None) -> None:
        """Remove the verdict of an earlier session of this attempt, unless it is a stop of another run.

        That session was done, or the script caught its error, or this run stopped; ``before`` is this run's last
        status.
        """
        path = self.folder / verdict_file(self.number)
        left = _text(path)
        is_ours = before is not None and before.attempt == self.number and left == self._for_script(before).verdict
        if left and (is_ours or not _is_stop(left)):
            path.unlink(missing_ok=True)

    def begin(self) -> None:
        """List a run in another folder in RUN_DIR/sessions; remove a RUN_DIR/STOP that does not apply to this attempt.

        A STOP does not apply if it is for the time limit of another attempt, or if an earlier attempt ended normally
        after the STOP was written.
        """
        if not self.has_other_run_folder:
            return
        path, name = self.folder / SESSIONS, self._name
        if name not in _text(path).split("\n"):
            with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"{name}\n")
        reason, meant = read_stop_file(self.folder)
        is_of_other_folder = reason == Reason.TIME_LIMIT and meant != f"{self._id}/{self.number}"
        if is_of_other_folder or (reason and self._ended_after_stop()):
            (self.folder / STOP).unlink(missing_ok=True)

    def write_verdict(self, status: Status) -> None:
        """Write the run's verdict to its folder, and to RUN_DIR unless the run is in another folder and done.

        The verdict in RUN_DIR stays unchanged if another run of the attempt has stopped, unless this run has failed.
        """
        has_stopped = _is_stop(_text(self.folder / verdict_file(status.attempt)))
        is_done = self.has_other_run_folder and status.state == "done"
        if status.state == "failed" or not (has_stopped or is_done):
            write_verdict(self.folder, self._for_script(status))
        if self.has_other_run_folder:
            write_verdict(self._run, status)

    def _for_script(self, status: Status) -> Status:
        """Return ``status`` for the job script, which decides itself whether any of several runs made progress."""
        if status.state == "stopped" and (self.folder / SESSIONS).exists():
            return dataclasses.replace(status, requeue=status.reason == Reason.TIME_LIMIT.word)
        return status

    @property
    def _name(self) -> str:
        """The run folder, relative to RUN_DIR if it is inside: users may move a run folder."""
        run, job = (Path(os.path.realpath(path)) for path in (self._run, self.folder))
        return str(run.relative_to(job) if run.is_relative_to(job) else run)

    def _ended_after_stop(self) -> bool:
        """Return whether an earlier attempt ended normally after RUN_DIR/STOP was written."""
        for number in range(1, self.number):
            path = self.folder / verdict_file(number)
            with contextlib.suppress(OSError):
                is_later = path.stat().st_mtime_ns >= (self.folder / STOP).stat().st_mtime_ns
                if is_later and not _text(path).startswith("failed"):
                    return True
        return False


def _is_stop(verdict: str) -> bool:
    return verdict.partition(" ")[0] in {"stopped", "out-of-time"}


def _text(path: Path) -> str:
    """Return the file's text without its final newline; "" if it cannot be read."""
    try:
        return read_whole(path).decode(errors="surrogateescape").removesuffix("\n")
    except OSError:
        return ""

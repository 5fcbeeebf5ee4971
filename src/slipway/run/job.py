"""The job of a run: its script reads RUN_DIR alone, also if the run is in another folder, as a fold's is.

Such a run is listed in RUN_DIR/sessions, by which the script finds what it has saved. It obeys RUN_DIR/STOP, and leaves
a verdict there too, unless it is done: other runs may follow, and the exit code says how the script ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from slipway.base.bounded_read import read_whole
from slipway.base.contract import SESSIONS, STOP, verdict_file
from slipway.base.environment import Environment
from slipway.base.status import Status, write_verdict
from slipway.base.stop import Reason, read_stop_file


class Job:
    """The folder that the job script of a run reads; without a job that is the run's own."""

    def __init__(self, folder: Path, environment: Environment) -> None:
        """Compare ``folder``, of the run, with RUN_DIR."""
        self.number = environment.attempt
        """Of the attempt, given by the job script; 0 without one."""
        self._id = environment.job_id
        self._run = folder
        run_dir = Path(environment.run_dir).absolute() if self.number and environment.run_dir else folder
        self.is_elsewhere = os.path.realpath(run_dir) != os.path.realpath(folder)
        """Whether the folder of the run is another one."""
        self.folder = run_dir if self.is_elsewhere else folder
        """RUN_DIR, or the folder of the run."""

    def withdraw_verdict(self, before: Status | None) -> None:
        """Remove what an earlier session of this attempt has left, unless it is a stop of another run.

        It was done; or its error was caught; or it was this run that stopped, of which ``before`` is the last status.
        """
        path = self.folder / verdict_file(self.number)
        left = _text(path)
        is_ours = before is not None and before.attempt == self.number and left == self._for_script(before).verdict
        if left and (is_ours or not _is_stop(left)):
            path.unlink(missing_ok=True)

    def begin(self) -> None:
        """List a run elsewhere, and remove a STOP of RUN_DIR that does not mean this attempt.

        That is one for the time limit of another attempt, and one that was there when an earlier attempt ended.
        """
        if not self.is_elsewhere:
            return
        path, name = self.folder / SESSIONS, self._name
        if name not in _text(path).split("\n"):
            with path.open("a", encoding="utf-8", errors="surrogateescape") as file:
                file.write(f"{name}\n")
        reason, meant = read_stop_file(self.folder)
        is_of_another = reason == Reason.TIME_LIMIT and meant != f"{self._id}/{self.number}"
        if is_of_another or (reason and self._has_ended_after_stop()):
            (self.folder / STOP).unlink(missing_ok=True)

    def write_verdict(self, status: Status) -> None:
        """Leave the verdict of the run, in RUN_DIR too if it has not been done elsewhere.

        What the script reads stays as it is if another run of the attempt has stopped, unless this one has failed.
        """
        has_stopped = _is_stop(_text(self.folder / verdict_file(status.attempt)))
        is_done = self.is_elsewhere and status.state == "done"
        if status.state == "failed" or not (has_stopped or is_done):
            write_verdict(self.folder, self._for_script(status))
        if self.is_elsewhere:
            write_verdict(self._run, status)

    def _for_script(self, status: Status) -> Status:
        """Return ``status`` as the script gets it, which alone knows whether one of several runs has gained a step."""
        if status.state == "stopped" and (self.folder / SESSIONS).exists():
            return dataclasses.replace(status, requeue=status.reason == Reason.TIME_LIMIT.word)
        return status

    @property
    def _name(self) -> str:
        """The folder of the run, relative to RUN_DIR if it is within: a run folder may be moved."""
        run, job = (Path(os.path.realpath(path)) for path in (self._run, self.folder))
        return str(run.relative_to(job) if run.is_relative_to(job) else run)

    def _has_ended_after_stop(self) -> bool:
        """Return whether an earlier attempt ended in good order after the STOP of RUN_DIR was written."""
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
    """Return what the file says; "" if there is none."""
    try:
        return read_whole(path).decode(errors="surrogateescape").removesuffix("\n")
    except OSError:
        return ""

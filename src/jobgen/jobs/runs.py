"""State of a run, from the files of its run folder: attempts, jobs, progress."""

from __future__ import annotations

import re
import time
from functools import cached_property
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from jobgen.base.queue import JobId, job_id
from jobgen.jobs.account import Account, read_account
from jobgen.jobs.run_files import RunFiles, Started, number_in
from slipway.base import contract
from slipway.base.goodput import describe, read_goodput
from slipway.base.slugs import SLUGS


class Progress(NamedTuple):
    """A run's state and a description of its progress."""

    state: str
    """One word: done, running, crashed, and so on."""
    line: str
    reason: str = ""
    """Reason of the last attempt's end: "SLUG: SENTENCE", a word, or ""."""


class Origin(NamedTuple):
    """The last submission of a run by its user."""

    job: Optional[JobId]
    """The submitted job, which later jobs may have continued automatically; None for a local process."""
    began: float
    """Start of that job's first attempt, by the file server's clock: an upper bound for the time of submission."""


class Run:
    """The state of a run at the time when its files are read, at first use."""

    def __init__(self, path: Path) -> None:
        """Create the state of the run in the folder ``path``; reads nothing yet."""
        self.path = path
        self.stop = path / contract.STOP
        self.files = RunFiles(path)

    @property
    def name(self) -> str:
        """Name of the run folder, without the job that began the run if it ends with it."""
        starters = [self.files.starter(number) for number in self.files.attempts[:1]]
        return self.path.name.removesuffix(f"-{starters[0]}") if starters else self.path.name

    @cached_property
    def attempt(self) -> int:
        """Number of the last attempt, from the logs or from the status file; 0 without attempts."""
        return max([*self.files.attempts, number_in(self.files.status.get("attempt"))])

    def streams(self, job: Optional[JobId]) -> List[Path]:
        """Return the files of what the ranks printed in the last attempt that ``job`` started; None: in the last one.

        The first is standard output, which only a client writes to a file, and the second standard error.
        """
        files = self.files
        number = next((each for each in reversed(files.attempts) if job is None or _is_by(files.started(each), job)), 0)
        return [files.log(number, name) for name in (contract.ATTEMPT_OUTPUT, contract.ATTEMPT_ERRORS)]

    @property
    def changed(self) -> float:
        """Time of the last change, by the file server's clock; 0.0 if the run folder is missing."""
        modified, log = self.files.modified, self.path / contract.LOGS / str(max([0, *self.files.attempts]))
        times = [modified(path) for path in (self.path / contract.STATUS, self.path / contract.METRICS, log)]
        return max([time for time in times if time is not None], default=modified(self.path) or 0.0)

    @cached_property
    def alive(self) -> bool:
        """Whether the heartbeat of a training process is younger than ``contract.STALE`` seconds."""
        beat = self.files.modified(self.path / contract.LOCK)
        return beat is not None and self.files.now() - beat < contract.STALE

    @property
    def ended(self) -> bool:
        """Whether the last attempt has ended, according to its files."""
        if self.files.verdict(self.attempt) or self.files.code(self.attempt):
            return True
        return not self.alive and self._begun

    @property
    def is_done(self) -> bool:
        """Whether training is complete; for a user script without a verdict: the last exit code is 0."""
        if self.files.cause(self.attempt):
            return False
        verdict = self.files.verdict(self.attempt)
        return verdict.state == "done" if verdict else self.files.code(self.attempt) == "0"

    @property
    def has_permanent_error(self) -> bool:
        """Whether the last attempt failed with an error that an unchanged retry cannot fix."""
        verdict = self.files.verdict(self.attempt)
        return bool(self.files.cause(self.attempt)) or (verdict is not None and verdict.state == "failed")

    @property
    def start_times(self) -> List[float]:
        """Start times of the attempts in order, by the file server's clock."""
        files = self.files
        found = [files.modified(files.log(number, contract.ATTEMPT_JOB)) for number in files.attempts]
        return [time for time in found if time is not None]

    @property
    def foreign(self) -> bool:
        """Whether the run is a user script without Session: it writes no status and does not read the file STOP."""
        return bool(self.files.attempts) and not self.has_session and not self.alive

    @property
    def has_session(self) -> bool:
        """Whether a Session, or the trainer, has opened the run; from then on it reads the file STOP."""
        return bool(self.files.status) or (self.path / contract.SESSIONS).exists()

    @cached_property
    def job(self) -> Optional[Started]:
        """Scheduler and job that run it now or ran it last; a job that will continue it and is queued counts too."""
        started, requeues = self.files.started(self.attempt), self.path / contract.REQUEUES
        last = self.files.text(requeues).strip().rpartition("\n")[2]
        following = job_id(last.partition(" ")[2])
        if not started or not started.job or not following or following == started.job:
            return started
        begun = self.files.modified(self.files.log(self.attempt, contract.ATTEMPT_JOB)) or 0.0
        return started._replace(job=following) if (self.files.modified(requeues) or 0.0) > begun else started

    @cached_property
    def origin(self) -> Origin:
        """The last submission of the run by its user, not by a job script that continued it."""
        files = self.files
        names = {number: files.starter(number) for number in files.attempts}
        last = self.job
        name = str(last.job) if last and last.job else names.get(self.attempt, "")
        chain = [name]
        while (name := self._continued.get(name, "")) and name not in chain:
            chain.append(name)
        starts = [files.modified(files.log(number, contract.ATTEMPT_JOB)) for number in names if names[number] in chain]
        began = min([start for start in starts if start], default=files.modified(self.path / contract.PROVENANCE))
        return Origin(job_id(chain[-1]) if last and last.job else None, began or self.changed)

    @property
    def _continued(self) -> Dict[str, str]:
        """The job that each job of a chain continues, from the lines ``COUNT JOB`` of the requeues."""
        rows = re.findall(r"(?m)^([0-9]+) (\S+)$", self.files.text(self.path / contract.REQUEUES))
        pairs = [(old, new) for (one, old), (two, new) in zip(rows, rows[1:]) if one == two]
        return {new: old for old, new in pairs if old != new}

    def started_by(self, job: JobId) -> Optional[Started]:
        """Return the latest start by ``job`` or by a task of the array ``job``; None if it never ran here."""
        for started in (self.job, *(self.files.started(number) for number in reversed(self.files.attempts))):
            if _is_by(started, job):
                return started
        return None

    @cached_property
    def accounts(self) -> List[Account]:
        """Resource usage of the attempts that wrote an account."""
        found = [read_account(self.files.log(number, contract.ATTEMPT_ACCOUNT)) for number in self.files.attempts]
        return [account for account in found if account]

    @cached_property
    def goodput(self) -> str:
        """Description of the run's goodput; "" if it was not measured."""
        return describe(read_goodput(self.path / contract.GOODPUT))

    @property
    def launches(self) -> int:
        """Number of attempts that started ranks."""
        return sum(self.files.launched(number) for number in self.files.attempts)

    @property
    def state(self) -> str:
        """State in one word: done, running, crashed, and so on."""
        return self._current_progress.state

    def describe(self) -> str:
        """Return one line that describes state and progress."""
        return self._current_progress.line

    def facts(self) -> Dict[str, Any]:
        """Return state and progress as a JSON object."""
        seen = self._current_progress
        slug = seen.reason.partition(":")[0].strip()
        return {
            "path": str(self.path),
            "state": seen.state,
            "slug": slug if slug in SLUGS else "",
            "attempt": self.attempt,
            "step": self._step(self._saved),
            "line": seen.line,
        }

    @property
    def _saved(self) -> int:
        """Step in the verdict, or else in the status."""
        verdict = self.files.verdict(self.attempt)
        return verdict.step if verdict else number_in(self.files.status.get("step"))

    @cached_property
    def _current_progress(self) -> Progress:
        """State, one-line description, and reason."""
        number, status = self.attempt, self.files.status
        if not number and not status:
            return Progress("empty", "no rank has started training")
        code, verdict = self.files.code(number), self.files.verdict(number)
        if cause := self.files.cause(number):
            return Progress("failed", f"attempt {number} failed before training{_in_parentheses(cause)}", cause)
        if verdict:
            reason = "" if verdict.state == "done" else _in_parentheses(verdict.reason)
            line = f"attempt {number} {verdict.state}{reason}{self._progress(verdict.step)}"
            return Progress(verdict.state, line, verdict.reason)
        if not status:
            return self._without_status(number, code)
        exit_code = f", exit code {code}" if code else ""
        if not self._begun:
            before = f"attempt {status.get('attempt')} {status.get('state')}{_in_parentheses(status.get('reason'))}"
            said = f"attempt {number} has not started training{exit_code}; {before}{self._progress(status.get('step'))}"
            return Progress("failed" if code else "starting", said)
        state, said = str(status.get("state")), f"attempt {number} {status.get('state')}"
        if state == "running" and code:
            state, said = "crashed", f"{said}, but its launch ended without a verdict{exit_code}: it crashed"
        elif state == "running" and not self.alive:
            state, said = "crashed", f"{said}, but no heartbeat for {contract.STALE:.0f} s: it crashed"
        line = f"{said}{_in_parentheses(status.get('reason'))}{self._progress(status.get('step'))}"
        return Progress(state, line, str(status.get("reason")))

    def _without_status(self, number: int, code: str) -> Progress:
        """Return the progress of a user script, or before training begins, from the job script's files alone."""
        files = self.files
        own = files.kept_setting("SLIPWAY_SCRIPT")
        what = f"attempt {number} (user script)" if own else f"attempt {number}"
        if code:
            before = "" if own or code == "0" else " before training began"
            ended = _clock(files.modified(files.log(number, contract.ATTEMPT_CODE)))
            return Progress("done" if code == "0" else "failed", f"{what} ended{before}, exit code {code}, {ended}")
        began = _clock(files.modified(files.log(number, contract.ATTEMPT_JOB)))
        since = f"; started {began}" if began else ""
        if not files.launched(number):
            return Progress("starting", f"{what} has not started its ranks{since}")
        status = "; no status yet, which only a script with slipway.Session writes" if own else ", no status yet"
        return Progress("started", f"{what} has started its ranks{status}{since}")

    @property
    def _begun(self) -> bool:
        """Whether the status file belongs to the last attempt, that is, its training has begun."""
        status = self.files.status
        return bool(status) and number_in(status.get("attempt")) >= self.attempt

    def _step(self, saved: Any) -> int:
        """Return the last recorded step, or ``saved`` if that is higher."""
        return max(number_in(self.files.record.get("step")), number_in(saved))

    def _progress(self, saved: Any) -> str:
        record = self.files.record
        values = {
            name: value for name, value in record.items() if isinstance(value, float) or number_in(value) == value
        }
        said = f", step {self._step(saved)}"
        for name, form in {
            "epoch": ", epoch {:.1f}",
            "loss": ", loss {:.4g}",
            "samples_per_second": ", {:.0f} samples/s",
        }.items():
            if name in values:
                said += form.format(values[name])
        return said + (f", accuracy {100 * values['accuracy']:.2f} %" if "accuracy" in values else "")


def _is_by(started: Optional[Started], job: JobId) -> bool:
    """Return whether ``job``, or a task of the array ``job``, started an attempt."""
    return bool(started and started.job and started.job.is_in_array(job))


def _in_parentheses(reason: Any) -> str:
    return f" ({reason})" if reason else ""


def _clock(modified: Optional[float]) -> str:
    """Return the local time of a modification time, to the minute; "" for None."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(modified)) if modified else ""

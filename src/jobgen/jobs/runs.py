"""State of a run, read from the files of its run folder (docs/contract.md): attempts, jobs, progress."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from jobgen.base.queue import JobId, job_id
from jobgen.jobs.account import Account, read_account
from slipway.base import contract
from slipway.base.bounded_read import SMALL, read_head, read_tail
from slipway.base.goodput import describe, read_goodput
from slipway.base.slugs import SLUGS


class Started(NamedTuple):
    """The scheduler and job that started an attempt."""

    scheduler: str
    job: Optional[JobId]
    """None: a local process, not a job of a scheduler."""


class Verdict(NamedTuple):
    """The trainer's verdict on an attempt."""

    state: str
    step: int
    reason: str


class Progress(NamedTuple):
    """A run's state and a description of its progress."""

    state: str
    """One word: done, running, crashed, and so on."""
    line: str
    reason: str = ""
    """Reason of the last attempt's end: "SLUG: SENTENCE", a word, or ""."""


class Run:
    """A snapshot of a run folder: each file is read at most once, at first use."""

    def __init__(self, path: Path) -> None:
        """Create the snapshot of the run folder ``path``; reads nothing yet."""
        self.path = path
        self.stop = path / contract.STOP
        self._text, self._modified = cache(_text), cache(_modified)

    @cached_property
    def attempts(self) -> List[int]:
        """Numbers of the attempts that a job script started, in ascending order."""
        try:
            names = [path.name for path in (self.path / contract.LOGS).iterdir()]
        except OSError:
            return []
        return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]{0,8}", name))

    @cached_property
    def attempt(self) -> int:
        """Number of the last attempt, from the logs or from the status file; 0 without attempts."""
        return max([*self.attempts, _number(self._status.get("attempt"))])

    @property
    def output(self) -> Path:
        """File with the standard output of the last attempt's ranks; only a client writes it."""
        return self._log(self.attempt, contract.ATTEMPT_OUTPUT)

    @property
    def errors(self) -> Path:
        """File with the standard error of the last attempt's ranks."""
        return self._log(self.attempt, contract.ATTEMPT_ERRORS)

    @property
    def started(self) -> Optional[Started]:
        """Scheduler and job that started the last attempt; None if no job script did."""
        return self._started(self.attempt)

    @property
    def changed(self) -> float:
        """Time of the last change, by the file server's clock; 0.0 if the run folder is missing."""
        log = self.path / contract.LOGS / str(max([0, *self.attempts]))
        times = [self._modified(path) for path in (self.path / contract.STATUS, self.path / contract.METRICS, log)]
        return max([time for time in times if time is not None], default=self._modified(self.path) or 0.0)

    @cached_property
    def alive(self) -> bool:
        """Whether the heartbeat of a training process is younger than ``contract.STALE`` seconds."""
        beat = self._modified(self.path / contract.LOCK)
        return beat is not None and self._now() - beat < contract.STALE

    @property
    def ended(self) -> bool:
        """Whether the last attempt has ended, according to its files."""
        if self._verdict(self.attempt) or self._code(self.attempt):
            return True
        return not self.alive and self._begun

    @property
    def is_done(self) -> bool:
        """Whether training is complete; for a user script without a verdict: the last exit code is 0."""
        if self._cause(self.attempt):
            return False
        verdict = self._verdict(self.attempt)
        return verdict.state == "done" if verdict else self._code(self.attempt) == "0"

    @property
    def has_permanent_error(self) -> bool:
        """Whether the last attempt failed with an error that an unchanged retry cannot fix."""
        verdict = self._verdict(self.attempt)
        return bool(self._cause(self.attempt)) or (verdict is not None and verdict.state == "failed")

    @property
    def start_times(self) -> List[float]:
        """Start times of the attempts in order, by the file server's clock."""
        found = [self._modified(self._log(number, contract.ATTEMPT_JOB)) for number in sorted(self.attempts)]
        return [time for time in found if time is not None]

    @property
    def foreign(self) -> bool:
        """Whether the run is a user script without Session: it writes no status and does not read the file STOP."""
        has_session = bool(self._status) or (self.path / contract.SESSIONS).exists()
        return bool(self.attempts) and not has_session and not self.alive

    @cached_property
    def job(self) -> Optional[Started]:
        """Scheduler and job that run it now or ran it last; a job that will continue it and is queued counts too."""
        started, requeues = self.started, self.path / contract.REQUEUES
        last = self._text(requeues).strip().rpartition("\n")[2]
        following = job_id(last.partition(" ")[2])
        if not started or not started.job or not following or following == started.job:
            return started
        begun = self._modified(self._log(self.attempt, contract.ATTEMPT_JOB)) or 0.0
        return started._replace(job=following) if (self._modified(requeues) or 0.0) > begun else started

    def started_by(self, job: JobId) -> Optional[Started]:
        """Return the latest start by ``job`` or by a task of the array ``job``; None if it never ran here."""
        for started in (self.job, *(self._started(number) for number in reversed(self.attempts))):
            if started and started.job and started.job.is_in_array(job):
                return started
        return None

    @cached_property
    def accounts(self) -> List[Account]:
        """Resource usage of the attempts that wrote an account."""
        found = [read_account(self._log(number, contract.ATTEMPT_ACCOUNT)) for number in self.attempts]
        return [account for account in found if account]

    @cached_property
    def goodput(self) -> str:
        """Description of the run's goodput; "" if it was not measured."""
        return describe(read_goodput(self.path / contract.GOODPUT))

    @property
    def launches(self) -> int:
        """Number of attempts that started ranks."""
        return sum(self._launched(number) for number in self.attempts)

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
        verdict = self._verdict(self.attempt)
        return verdict.step if verdict else _number(self._status.get("step"))

    @cached_property
    def _current_progress(self) -> Progress:
        """State, one-line description, and reason."""
        number, status = self.attempt, self._status
        if not number and not status:
            return Progress("empty", "no rank has started training")
        code, verdict = self._code(number), self._verdict(number)
        if cause := self._cause(number):
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
        own = re.search(r"(?m)^restore_setting SLIPWAY_SCRIPT (?!''$)", self._text(self.path / contract.JOB_SCRIPT))
        what = f"attempt {number} (user script)" if own else f"attempt {number}"
        if code:
            before = "" if own or code == "0" else " before training began"
            ended = _clock(self._modified(self._log(number, contract.ATTEMPT_CODE)))
            return Progress("done" if code == "0" else "failed", f"{what} ended{before}, exit code {code}, {ended}")
        began = _clock(self._modified(self._log(number, contract.ATTEMPT_JOB)))
        since = f"; started {began}" if began else ""
        if not self._launched(number):
            return Progress("starting", f"{what} has not started its ranks{since}")
        status = "writes no status" if own else "no status yet"
        return Progress("started", f"{what} has started its ranks, {status}{since}")

    def _launched(self, attempt: int) -> bool:
        """Return whether an attempt started its ranks."""
        return self._modified(self._log(attempt, contract.ATTEMPT_ERRORS)) is not None

    @cached_property
    def _record(self) -> Dict[str, Any]:
        return _last_record(self.path / contract.METRICS)

    @cached_property
    def _status(self) -> Dict[str, Any]:
        return _parsed(self._text(self.path / contract.STATUS))

    @property
    def _begun(self) -> bool:
        """Whether the status file belongs to the last attempt, that is, its training has begun."""
        status = self._status
        return bool(status) and _number(status.get("attempt")) >= self.attempt

    def _log(self, attempt: int, name: str) -> Path:
        return self.path / contract.LOGS / str(attempt) / name

    def _started(self, attempt: int) -> Optional[Started]:
        scheduler, job = [*self._text(self._log(attempt, contract.ATTEMPT_JOB)).split(), "", ""][:2]
        if not scheduler:
            return None
        return Started(scheduler, None if scheduler == "local" else job_id(job))

    def _code(self, attempt: int) -> str:
        """Return the exit code of an attempt's launch; "" until it exists."""
        code = self._text(self._log(attempt, contract.ATTEMPT_CODE)).strip()
        return code if code.isascii() and code.isdigit() else ""

    def _verdict(self, attempt: int) -> Optional[Verdict]:
        state, *rest = self._text(self.path / contract.verdict_file(attempt)).split(None, 2) or [""]
        if state not in contract.VERDICTS:
            return None
        step = rest[0] if rest and rest[0].isascii() and rest[0].isdigit() else "0"
        return Verdict(state, int(step[:18]), rest[1].strip() if len(rest) > 1 else "")

    def _cause(self, attempt: int) -> str:
        """Return the permanent error that ended an attempt before training; "" if there is none."""
        code, _, sentence = self._text(self._log(attempt, contract.ATTEMPT_CAUSE)).partition(" ")
        return sentence.strip() if code in map(str, contract.CAUSE_CODES) else ""

    def _step(self, saved: Any) -> int:
        """Return the last recorded step, or ``saved`` if that is higher."""
        return max(_number(self._record.get("step")), _number(saved))

    def _progress(self, saved: Any) -> str:
        record = self._record
        values = {name: value for name, value in record.items() if isinstance(value, float) or _number(value) == value}
        said = f", step {self._step(saved)}"
        for name, form in {
            "epoch": ", epoch {:.1f}",
            "loss": ", loss {:.4g}",
            "samples_per_second": ", {:.0f} samples/s",
        }.items():
            if name in values:
                said += form.format(values[name])
        return said + (f", accuracy {100 * values['accuracy']:.2f} %" if "accuracy" in values else "")

    def _now(self) -> float:
        """Return the time by the file server's clock, which stamps heartbeats: clocks of hosts differ.

        Return this host's time if the run folder is not writable.
        """
        folders = [self.path / contract.LOGS, self.path]  # logs first: leaves the run folder's modification time
        for folder in folders:
            with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".now.") as file:
                return Path(file.name).stat().st_mtime
        return time.time()


def _in_parentheses(reason: Any) -> str:
    return f" ({reason})" if reason else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else 0


def _modified(path: Path) -> Optional[float]:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _clock(modified: Optional[float]) -> str:
    """Return the local time of a modification time, to the minute; "" for None."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(modified)) if modified else ""


def _text(path: Path) -> str:
    try:
        return read_head(path, limit=SMALL).decode(errors="replace")
    except OSError:
        return ""


def _last_record(path: Path) -> Dict[str, Any]:
    """Return the last complete record of a metrics.jsonl, reading only its end; {} without records."""
    try:
        data, whole = read_tail(path, limit=SMALL)
    except OSError:
        return {}
    lines = data.decode(errors="replace").split("\n")
    records = (_parsed(line) for line in reversed(lines if whole else lines[1:]))
    return next((record for record in records if record), {})


def _parsed(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # empty, or partly written
        return {}
    return found if isinstance(found, dict) else {}

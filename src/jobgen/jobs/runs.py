"""A run folder, read from outside as docs/contract.md describes it: which jobs worked in it, how far it has come."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import time
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from jobgen.base.queue import JobId, job_id
from jobgen.jobs.account import Account, read_account
from slipway.base import contract
from slipway.base.bounded_read import read_end, read_start
from slipway.base.goodput import describe, read_goodput
from slipway.base.slugs import SLUGS

SMALL = 1 << 16
"""Bytes that are read of a file at most: what is looked for stands at its start, or at its end."""


class Started(NamedTuple):
    """Who started an attempt."""

    scheduler: str
    job: Optional[JobId]
    """None: no scheduler's job, but a process of this machine."""


class Verdict(NamedTuple):
    """How an attempt ended."""

    state: str
    step: int
    reason: str


class Progress(NamedTuple):
    """How far a run is."""

    state: str
    """In a word: done, running, crashed, and so on."""
    line: str
    reason: str = ""
    """Of its last attempt: SLUG: SENTENCE, a word, or ""."""


class Run:
    """What a run folder says at one time: each file is read once at most, when it is first asked about."""

    def __init__(self, path: Path) -> None:
        """Describe the run in ``path``."""
        self.path = path
        self.stop = path / contract.STOP
        self._text, self._modified = lru_cache(maxsize=None)(_text), lru_cache(maxsize=None)(_modified)

    def again(self) -> Run:
        """Return what the same folder says now."""
        return Run(self.path)

    @cached_property
    def attempts(self) -> List[int]:
        """The numbers of its attempts under a job script, in order."""
        try:
            names = [path.name for path in (self.path / contract.LOGS).iterdir()]
        except OSError:
            return []
        return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]{0,8}", name))

    @cached_property
    def attempt(self) -> int:
        """The number of the last attempt; that of the status where no job script began one; 0 if there is none."""
        return max([*self.attempts, _number(self._status.get("attempt"))])

    @property
    def output(self) -> Path:
        """What the ranks of its last attempt wrote to standard output, where a client kept it."""
        return self._log(self.attempt, contract.ATTEMPT_OUTPUT)

    @property
    def errors(self) -> Path:
        """What the ranks of its last attempt said on standard error."""
        return self._log(self.attempt, contract.ATTEMPT_ERRORS)

    @property
    def started(self) -> Optional[Started]:
        """Who started the last attempt; None where no job script did."""
        return self._started(self.attempt)

    @property
    def changed(self) -> float:
        """When something happened in it: a time, in the clock of its file server; 0.0 if it is gone."""
        log = self.path / contract.LOGS / str(max([0, *self.attempts]))
        times = [self._modified(path) for path in (self.path / contract.STATUS, self.path / contract.METRICS, log)]
        return max([time for time in times if time is not None], default=self._modified(self.path) or 0.0)

    @cached_property
    def alive(self) -> bool:
        """Whether a process of training gave a sign of life not long ago."""
        beat = self._modified(self.path / contract.LOCK)
        return beat is not None and self._now() - beat < contract.STALE

    @property
    def ended(self) -> bool:
        """Whether its last attempt is over, as far as its files say."""
        if self._verdict(self.attempt) or self._code(self.attempt):
            return True
        return not self.alive and self._begun

    @property
    def is_done(self) -> bool:
        """Whether its last attempt has done all that was to be done; of a script of its own: ended with 0."""
        if self._cause(self.attempt):
            return False
        verdict = self._verdict(self.attempt)
        return verdict.state == "done" if verdict else self._code(self.attempt) == "0"

    @property
    def is_refused(self) -> bool:
        """Whether the trainer has said that trying again unchanged cannot help."""
        verdict = self._verdict(self.attempt)
        return bool(self._cause(self.attempt)) or (verdict is not None and verdict.state == "failed")

    @property
    def beginnings(self) -> List[float]:
        """When its attempts began, the first one first: times, in the clock of its file server."""
        found = [self._modified(self._log(number, contract.ATTEMPT_JOB)) for number in sorted(self.attempts)]
        return [time for time in found if time is not None]

    @property
    def foreign(self) -> bool:
        """Whether what it trains leaves no status: it looks for no file STOP either."""
        has_session = bool(self._status) or (self.path / contract.SESSIONS).exists()
        return bool(self.attempts) and not has_session and not self.alive

    @cached_property
    def job(self) -> Optional[Started]:
        """Who works in it, or did last: also a job that continues it and still waits."""
        started, requeues = self.started, self.path / contract.REQUEUES
        last = self._text(requeues).strip().rpartition("\n")[2]
        following = job_id(last.partition(" ")[2])
        if not started or not started.job or not following or following == started.job:
            return started
        begun = self._modified(self._log(self.attempt, contract.ATTEMPT_JOB)) or 0.0
        return started._replace(job=following) if (self._modified(requeues) or 0.0) > begun else started

    def started_by(self, job: JobId) -> Optional[Started]:
        """Return how ``job``, or a task of the array ``job``, works or has worked in it; None if it has not."""
        for started in (self.job, *(self._started(number) for number in reversed(self.attempts))):
            if started and started.job and started.job.of_array(job):
                return started
        return None

    @cached_property
    def accounts(self) -> List[Account]:
        """What its attempts have used, of those that have left an account."""
        found = [read_account(self._log(number, contract.ATTEMPT_ACCOUNT)) for number in self.attempts]
        return [account for account in found if account]

    @cached_property
    def goodput(self) -> str:
        """How the time of its attempts was spent; "" where nobody has measured that."""
        return describe(read_goodput(self.path / contract.GOODPUT))

    @property
    def launches(self) -> int:
        """How many of its attempts have started ranks."""
        return sum(self._launched(number) for number in self.attempts)

    @property
    def state(self) -> str:
        """How far it is, in a word: done, running, crashed, and so on."""
        return self._looked.state

    def describe(self) -> str:
        """Return one line on how far it is."""
        return self._looked.line

    def facts(self) -> Dict[str, Any]:
        """Return how far it is, for programs."""
        seen = self._looked
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
        """The step that its verdict names, or its status."""
        verdict = self._verdict(self.attempt)
        return verdict.step if verdict else _number(self._status.get("step"))

    @cached_property
    def _looked(self) -> Progress:
        """Return how far it is, and why it is not further."""
        number, status = self.attempt, self._status
        if not number and not status:
            return Progress("empty", "no rank has started training")
        code, verdict = self._code(number), self._verdict(number)
        if cause := self._cause(number):
            return Progress("failed", f"attempt {number} failed before it trained{_because(cause)}", cause)
        if verdict:
            reason = "" if verdict.state == "done" else _because(verdict.reason)
            line = f"attempt {number} {verdict.state}{reason}{self._progress(verdict.step)}"
            return Progress(verdict.state, line, verdict.reason)
        if not status:
            return self._without_status(number, code)
        exit_code = f", exit code {code}" if code else ""
        if not self._begun:
            before = f"attempt {status.get('attempt')} {status.get('state')}{_because(status.get('reason'))}"
            said = f"attempt {number} has not begun to train{exit_code}; {before}{self._progress(status.get('step'))}"
            return Progress("failed" if code else "starting", said)
        state, said = str(status.get("state")), f"attempt {number} {status.get('state')}"
        if state == "running" and code:
            state, said = "crashed", f"{said}, but its launch has ended without a verdict{exit_code}: it crashed"
        elif state == "running" and not self.alive:
            state, said = "crashed", f"{said}, but without a sign of life for {contract.STALE:.0f} s: it crashed"
        line = f"{said}{_because(status.get('reason'))}{self._progress(status.get('step'))}"
        return Progress(state, line, str(status.get("reason")))

    def _without_status(self, number: int, code: str) -> Progress:
        """Return the same of a script of its own, or before training begins: what the job script knows of it."""
        own = re.search(r"(?m)^restore_setting SLIPWAY_SCRIPT (?!''$)", self._text(self.path / contract.JOB_SCRIPT))
        what = f"attempt {number}, a script of its own," if own else f"attempt {number}"
        if code:
            before = "" if own or code == "0" else " before it began to train"
            ended = _clock(self._modified(self._log(number, contract.ATTEMPT_CODE)))
            return Progress("done" if code == "0" else "failed", f"{what} ended{before}, exit code {code}, {ended}")
        began = _clock(self._modified(self._log(number, contract.ATTEMPT_JOB)))
        since = f"; it began {began}" if began else ""
        if not self._launched(number):
            return Progress("starting", f"{what} has started no rank{since}")
        status = "and leaves no status" if own else "no status yet"
        return Progress("started", f"{what} has started its ranks, {status}{since}")

    def _launched(self, attempt: int) -> bool:
        """Whether the ranks of an attempt have been started."""
        return self._modified(self._log(attempt, contract.ATTEMPT_ERRORS)) is not None

    @cached_property
    def _record(self) -> Dict[str, Any]:
        return _last_record(self.path / contract.METRICS)

    @cached_property
    def _status(self) -> Dict[str, Any]:
        return _parsed(self._text(self.path / contract.STATUS))

    @property
    def _begun(self) -> bool:
        """Whether the status is that of the last attempt."""
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
        """Return the exit code of an attempt's launch; "" while there is none."""
        code = self._text(self._log(attempt, contract.ATTEMPT_CODE)).strip()
        return code if code.isascii() and code.isdigit() else ""

    def _verdict(self, attempt: int) -> Optional[Verdict]:
        state, *rest = self._text(self.path / contract.verdict_file(attempt)).split(None, 2) or [""]
        if state not in contract.VERDICTS:
            return None
        step = rest[0] if rest and rest[0].isascii() and rest[0].isdigit() else "0"
        return Verdict(state, int(step[:18]), rest[1].strip() if len(rest) > 1 else "")

    def _cause(self, attempt: int) -> str:
        """Return what ended an attempt before it trained, for good; "" if nothing did."""
        code, _, sentence = self._text(self._log(attempt, contract.ATTEMPT_CAUSE)).partition(" ")
        return sentence.strip() if code in map(str, contract.CAUSE_CODES) else ""

    def _step(self, saved: Any) -> int:
        """Return the last step that it has recorded, or ``saved``."""
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
        """Return the time by the clock of the file server, which alone stamps heartbeats: hosts' clocks differ.

        By this host's clock where we may not write.
        """
        folders = [self.path / contract.LOGS, self.path]  # in logs it does not make the run folder look changed
        for folder in folders:
            with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".now.") as file:
                return Path(file.name).stat().st_mtime
        return time.time()


def _because(reason: Any) -> str:
    return f" ({reason})" if reason else ""


def _number(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 63 else 0


def _modified(path: Path) -> Optional[float]:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _clock(modified: Optional[float]) -> str:
    """Return when a file was written, for people; "" without one."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(modified)) if modified else ""


def _text(path: Path) -> str:
    try:
        return read_start(path, limit=SMALL).decode(errors="replace")
    except OSError:
        return ""


def _last_record(path: Path) -> Dict[str, Any]:
    """Return the last whole line of a metrics.jsonl, which may be huge; {} if there is none."""
    try:
        data, whole = read_end(path, limit=SMALL)
    except OSError:
        return {}
    lines = data.decode(errors="replace").split("\n")
    records = (_parsed(line) for line in reversed(lines if whole else lines[1:]))
    return next((record for record in records if record), {})


def _parsed(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):  # nothing, or being written
        return {}
    return found if isinstance(found, dict) else {}

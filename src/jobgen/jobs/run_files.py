"""Files of a run folder (docs/reference/run-folder.md), as a snapshot."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import tempfile
import time
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from jobgen.base.queue import JobId, job_id
from slipway.base import contract
from slipway.base.bounded_read import SMALL, read_head, read_tail


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


class RunFiles:
    """A snapshot of the files in a run folder: each is read at most once, at first use."""

    def __init__(self, path: Path) -> None:
        """Create the snapshot of the run folder ``path``; reads nothing yet."""
        self.path = path
        self.text, self.modified = cache(_text), cache(_modified)

    @cached_property
    def attempts(self) -> List[int]:
        """Numbers of the attempts that a job script started, in ascending order."""
        try:
            names = [path.name for path in (self.path / contract.LOGS).iterdir()]
        except OSError:
            return []
        return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]{0,8}", name))

    @cached_property
    def record(self) -> Dict[str, Any]:
        """The last record of the metrics; {} without records."""
        return _last_record(self.path / contract.METRICS)

    @cached_property
    def status(self) -> Dict[str, Any]:
        """The status file; {} if it is missing or not complete."""
        return parsed(self.text(self.path / contract.STATUS))

    def kept_setting(self, name: str) -> str:
        """Return the value of a setting that job.sh keeps for later attempts; "" if it keeps none."""
        return self._quoted(rf"restore_setting {name} (.*)")

    @property
    def kept_arguments(self) -> str:
        """The arguments that job.sh keeps for later attempts, in the syntax of a shell; "" without arguments."""
        found = re.search(r"(?m)^\[ \$# -gt 0 \] .* set -- (.*)$", self.text(self.path / contract.JOB_SCRIPT))
        return re.sub(r"(?<!\S)'([\w.,:/=@%+-]+)'(?!\S)", r"\1", found[1]) if found else ""

    @property
    def first_folder(self) -> str:
        """The folder of submission of the first attempt, from job.sh; "" if it does not contain it."""
        return self._quoted("kept_folder=(.*)")

    def _quoted(self, pattern: str) -> str:
        """Return a word that Bash's ``printf %q`` wrote to a line of job.sh; "" if there is no such line."""
        found = re.search(f"(?m)^{pattern}$", self.text(self.path / contract.JOB_SCRIPT))
        if not found:
            return ""
        if found[1].startswith("$'"):  # bytes that the locale of the job cannot show
            escaped = found[1][2:-1].encode("latin-1", "replace").decode("unicode_escape")
            return escaped.encode("latin-1", "replace").decode(errors="replace")
        return "".join(shlex.split(found[1]))

    def log(self, attempt: int, name: str) -> Path:
        """Return the path of an attempt's file ``name``."""
        return self.path / contract.LOGS / str(attempt) / name

    def started(self, attempt: int) -> Optional[Started]:
        """Return the scheduler and job that started an attempt; None if no job script did."""
        scheduler, job = [*self.text(self.log(attempt, contract.ATTEMPT_JOB)).split(), "", ""][:2]
        if not scheduler:
            return None
        return Started(scheduler, None if scheduler == "local" else job_id(job))

    def starter(self, attempt: int) -> str:
        """Return the job that started an attempt as text, for a local process too; "" if no job script did."""
        return [*self.text(self.log(attempt, contract.ATTEMPT_JOB)).split(), "", ""][1]

    def code(self, attempt: int) -> str:
        """Return the exit code of an attempt's launch; "" until it exists."""
        code = self.text(self.log(attempt, contract.ATTEMPT_CODE)).strip()
        return code if code.isascii() and code.isdigit() else ""

    def verdict(self, attempt: int) -> Optional[Verdict]:
        """Return the verdict on an attempt; None until it exists."""
        state, *rest = self.text(self.path / contract.verdict_file(attempt)).split(None, 2) or [""]
        if state not in contract.VERDICTS:
            return None
        step = rest[0] if rest and rest[0].isascii() and rest[0].isdigit() else "0"
        return Verdict(state, int(step[:18]), rest[1].strip() if len(rest) > 1 else "")

    def cause(self, attempt: int) -> str:
        """Return the permanent error that ended an attempt before training; "" if there is none."""
        code, _, sentence = self.text(self.log(attempt, contract.ATTEMPT_CAUSE)).partition(" ")
        return sentence.strip() if code in map(str, contract.CAUSE_CODES) else ""

    def launched(self, attempt: int) -> bool:
        """Return whether an attempt started its ranks."""
        return self.modified(self.log(attempt, contract.ATTEMPT_ERRORS)) is not None

    def now(self) -> float:
        """Return the time by the file server's clock, which stamps heartbeats: clocks of hosts differ.

        Return this host's time if the run folder is not writable.
        """
        folders = [self.path / contract.LOGS, self.path]  # logs first: leaves the run folder's modification time
        for folder in folders:
            with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".now.") as file:
                return Path(file.name).stat().st_mtime
        return time.time()


def number_in(value: Any) -> int:
    """Return ``value``, from JSON, if it is a whole number of at most 63 bits; otherwise 0."""
    return value if isinstance(value, int) and abs(value) < 1 << 63 else 0


def _modified(path: Path) -> Optional[float]:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


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
    records = (parsed(line) for line in reversed(lines if whole else lines[1:]))
    return next((record for record in records if record), {})


def parsed(text: str) -> Dict[str, Any]:
    """Return the JSON object in ``text``; {} if it is none, such as a line that is being written."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}

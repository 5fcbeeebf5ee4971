"""Attempts of a run: start and end times, reason for stopping, lost steps."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import itertools
import json
import re
import time
from typing import Any

from slipway.base.bounded_read import SMALL
from slipway.base.contract import (
    ATTEMPT_ACCOUNT,
    ATTEMPT_CODE,
    ATTEMPT_ERRORS,
    ATTEMPT_JOB,
    CHECKPOINTS,
    LATEST,
    LOCK,
    LOGS,
    METRICS,
    PROVENANCE,
    STALE,
    STATUS,
    checkpoint_step,
    verdict_file,
)
from slipway.report.files.untrusted_folder import Folder

STATES = ("done", "out-of-time", "stopped", "failed", "running")
MOST = 1000
"""Maximum number of attempts that are read."""


@dataclasses.dataclass
class PastAttempt:
    """One attempt of the run."""

    number: int
    state: str
    """done, out-of-time, stopped, failed, running, crashed (no verdict and no heartbeat), or unknown."""
    reason: str = ""
    job: str = ""
    """SCHEDULER JOB."""
    code: str = ""
    """Exit code of the launch."""
    used: str = ""
    """GPU-hours or core-hours used, from the job script's account; "" without one."""
    began: float | None = None
    ended: float | None = None
    """Both in seconds since 1970; None if unknown."""
    first: int | None = None
    """Optimizer steps done before this attempt."""
    saved: int | None = None
    """Optimizer steps done and saved when the attempt ended."""
    reached: int | None = None
    """The last step that the attempt is known to have done; records and log lines come only every few steps."""

    @property
    def lost(self) -> int | None:
        """Steps done but not saved, a lower bound because not every step is recorded; None if unknown."""
        if self.state in {"done", "out-of-time", "stopped"}:
            return 0
        if self.state == "running" or self.reached is None or self.saved is None:
            return None
        return max(0, self.reached - self.saved)


def json_of(folder: Folder, name: str, *, limit: int = SMALL) -> dict[str, Any]:
    """Return the object in a JSON file of at most ``limit`` bytes; {} if missing, and with a warning if invalid."""
    content = folder.read(name, limit=limit)
    if content is None:
        return {}
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(content)
        if isinstance(found, dict):
            return found
    folder.warn(f"{name}: not a JSON object")
    return {}


def is_alive(folder: Folder) -> bool:
    """Return whether the run's lock has been refreshed within ``STALE`` seconds."""
    beat = folder.modified(LOCK)
    return beat is not None and time.time() - beat < STALE


def read_attempts(folder: Folder, *, last_record: int) -> list[PastAttempt]:
    """Return the attempts of the run in ``folder``, in order.

    Args:
        folder: the run folder.
        last_record: the step of the run's last record.
    """
    numbers = sorted(int(name) for name in folder.names(LOGS) if re.fullmatch("[1-9][0-9]{0,8}", name))
    if len(numbers) > MOST:
        folder.warn(f"{LOGS}: {len(numbers)} attempts; only the last {MOST} are shown")
    found = [_read(folder, number, last=number == numbers[-1]) for number in numbers[-MOST:]]
    for attempt, following in itertools.pairwise(found):
        attempt.saved = following.first if attempt.saved is None else attempt.saved
        if attempt.ended and following.began and attempt.ended > following.began + 1:
            attempt.ended = None  # the files are copies with new modification times
    if found:
        _complete_last_attempt(folder, found[-1], last_record)
    return found


def _read(folder: Folder, number: int, *, last: bool) -> PastAttempt:
    own = f"{LOGS}/{number}"
    status, verdict = json_of(folder, f"{own}/{STATUS}"), verdict_file(number)
    words = (folder.text(verdict) or "").split(maxsplit=2)
    state, reason = "unknown", ""
    if words and words[0] in STATES:
        state, reason = words[0], words[2].strip() if len(words) > 2 else ""  # noqa: PLR2004
    elif status.get("state") in STATES:
        state, reason = status["state"], str(status.get("reason", ""))
    ended = folder.modified(verdict) if words else folder.modified(f"{own}/{STATUS}")
    saved = whole(status.get("step"))
    code = (folder.text(f"{own}/{ATTEMPT_CODE}") or "").strip()[:20]
    if state == "running":
        crashed = bool(code) or not (last and is_alive(folder))
        state, saved = ("crashed" if crashed else state), None
        ended = _last_activity(folder, own, last=last) if crashed else None
    reached = _logged_step(folder, f"{own}/{ATTEMPT_ERRORS}") if state in {"crashed", "failed"} else saved
    provenance = json_of(folder, f"{own}/{PROVENANCE}")
    started = timestamp(provenance.get("started"))  # of training, after copies and preflight
    times = [each for each in (started, folder.modified(f"{own}/{ATTEMPT_JOB}")) if each]
    began = min(times, default=None)
    return PastAttempt(
        number=number,
        state=state,
        reason="" if state == "done" else reason,
        job=(folder.text(f"{own}/{ATTEMPT_JOB}") or "").strip(),
        code=code,
        used=_used(json_of(folder, f"{own}/{ATTEMPT_ACCOUNT}")),
        began=began,
        ended=ended if ended is None or began is None or ended >= began else None,
        first=whole(status.get("start_step")),
        saved=saved,
        reached=reached,
    )


def _used(account: dict[str, Any]) -> str:
    """Return a job script's account as text; "" if it is invalid."""
    names = ("nodes", "count", "seconds", "gpus_seen", "busy")
    nodes, count, seconds, seen, busy = (whole(account.get(name)) for name in names)
    if nodes is None or count is None or seconds is None or account.get("unit") not in {"GPU", "core"}:
        return ""
    said = f"{nodes * count * seconds / 3600:.2f} {account['unit']}-hours"
    return f"{said}, {busy} % busy" if seen and busy is not None else said


def _complete_last_attempt(folder: Folder, last: PastAttempt, last_record: int) -> None:
    """Add to the last attempt the data that only the run folder holds: saved and reached steps."""
    if last.saved is None:
        last.saved = checkpoint_step(folder.link(f"{CHECKPOINTS}/{LATEST}"))
        if last.saved is None and last.state == "crashed":
            last.saved = last.first  # nothing was saved in this attempt
    if last_record and last.state != "unknown":
        last.reached = max(last_record, last.reached or 0)


def _last_activity(folder: Folder, own: str, *, last: bool) -> float | None:
    """Return the last modification time of a crashed attempt's files, as its end; None if there are none."""
    names = [f"{own}/{ATTEMPT_CODE}", f"{own}/{ATTEMPT_ERRORS}", *((LOCK, METRICS) if last else ())]
    return max((found for name in names if (found := folder.modified(name)) is not None), default=None)


def _logged_step(folder: Folder, name: str) -> int | None:
    """Return the last step in a log's progress lines; None if there is none."""
    found = re.findall(rb"\bstep (\d{1,15})\b", folder.read_tail(name) or b"")
    return int(found[-1]) if found else None


def timestamp(text: object) -> float | None:
    """Return an ISO 8601 time as seconds since 1970; None if it is invalid."""
    if isinstance(text, str):
        with contextlib.suppress(ValueError, OverflowError):
            return dt.datetime.fromisoformat(text).timestamp()
    return None


def whole(value: object) -> int | None:
    """Return ``value`` if it is a plausible count (an int from 0 to 2**53 - 1), otherwise None."""
    return value if type(value) is int and 0 <= value < 1 << 53 else None

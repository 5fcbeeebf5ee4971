"""Status and verdict files: an attempt's progress and outcome, for users, ``jobgen`` and the job script."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Literal

from slipway.base.bounded_read import SMALL, read_head
from slipway.base.contract import STATUS, verdict_file
from slipway.base.files import write_atomically, write_json
from slipway.base.stop import Reason

State = Literal["running", "done", "stopped", "failed"]


@dataclasses.dataclass(frozen=True)
class Status:
    """Content of status.json, which has one line."""

    attempt: int
    state: State
    reason: str = ""
    """For "stopped": time-limit, user, signal, or launcher (it died); for "failed": the error on one line."""
    start_step: int = 0
    """Optimizer steps done before this attempt."""
    step: int = 0
    """Optimizer steps done and saved."""
    requeue: bool = False
    """Whether an automatic requeue makes sense: the attempt stopped for the time limit and gained a step."""

    @property
    def verdict(self) -> str:
        """STATE STEP REASON, as the job script reads it; see slipway.base.contract.VERDICTS."""
        state = "out-of-time" if self.requeue else self.state
        return f"{state} {self.step} {self.reason or 'complete'}"

    def ended(self, reason: Reason, *, step: int) -> Status:
        """Return the status after the attempt ended at ``step``: stopped for ``reason``, or done without one."""
        return dataclasses.replace(
            self,
            state="stopped" if reason else "done",
            reason=reason.word if reason else "",
            step=step,
            requeue=reason == Reason.TIME_LIMIT and step > self.start_step,
        )

    def failed(self, why: str, *, step: int) -> Status:
        """Return the status after the attempt failed for the reason ``why``, with ``step`` saved."""
        return dataclasses.replace(self, state="failed", reason=why, step=step, requeue=False)


def write_status(folder: Path, status: Status) -> None:
    """Atomically replace ``folder``/status.json."""
    write_json(folder / STATUS, dataclasses.asdict(status))


def write_verdict(folder: Path, status: Status) -> None:
    """Write the verdict file of an attempt that has ended."""
    write_atomically(folder / verdict_file(status.attempt), status.verdict + "\n")


def read_status(folder: Path) -> Status | None:
    """Return the content of ``folder``/status.json, or None if it is missing or invalid.

    Fields that a later version has added are ignored.
    """
    defaults = dataclasses.asdict(Status(attempt=0, state="running"))
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        found = dict(json.loads(read_head(folder / STATUS, limit=SMALL)))
        values = {name: found[name] for name in defaults if name in found}
        if all(type(value) is type(defaults[name]) for name, value in values.items()):
            return Status(**values)
    return None

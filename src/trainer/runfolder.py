"""The run folder: what a run leaves behind, and what it finds of an earlier attempt. Rank 0 alone touches it.

docs/contract.md lists its files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec
import tomli_w
import torch

from trainer.config import Config
from trainer.errors import ConfigError, TrainerError
from trainer.files import write_atomically, write_json
from trainer.lock import Lock, given_attempt
from trainer.stop import STOP_FILE, Reason, read_stop_file
from trainer.world import World

RECORDED_VARIABLES = (
    "CUDA_VISIBLE_DEVICES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "RANK",
    "TRAINER_ATTEMPT",
    "TRAINER_JOB_ID",
    "TRAINER_WORLD_SIZE",
    "WORLD_SIZE",
)
"""The only environment variables that run.json holds; never all of them, for some hold tokens."""


State = Literal["running", "done", "stopped", "failed"]


@dataclass(frozen=True, kw_only=True)
class Status:
    """What became of one attempt, for the job script to decide on: the one line of status.json."""

    attempt: int
    state: State
    reason: str = ""
    """For "stopped": time-limit, user or signal; for "failed": the error in one line."""
    start_step: int = 0
    """Optimiser steps done before this attempt."""
    step: int = 0
    """Optimiser steps done and saved."""
    requeue: bool = False
    """Whether starting again makes sense without asking anyone: it stopped for time and had gained a step."""


class RunFolder:
    """An output directory, locked for one run at a time."""

    def __init__(self, path: Path, env: Mapping[str, str] = os.environ) -> None:
        """Describe the folder; ``open`` creates and locks it."""
        self.path = path
        self.metrics = path / "metrics.jsonl"
        self.figures = path / "figures"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.attempt = 0
        """Number of this attempt, counted from 1; known once the folder is open."""
        self._before: Status | None = None
        self._next_look = 0.0
        self._env = env

    def open(self, config: Config, world: World) -> None:
        """Create and lock the folder, and record what runs in it.

        Raises:
            ConfigError: if it cannot be written, another run is in it, or it holds one that is not to be resumed.
        """
        self._before = self._read_status()
        self.attempt = given_attempt(self._env) or 1 + (self._before.attempt if self._before else 0)
        self._lock = Lock(self.path, job_id=self._env.get("TRAINER_JOB_ID", ""), attempt=self.attempt)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock.acquire()
            for folder in (self.figures, self.logs, self.checkpoints):
                folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            self._lock.release()
            raise ConfigError(f"cannot write to --output-dir {self.path}: {error.strerror}.") from error
        if not config.run.resume and any(self.checkpoints.iterdir()):
            self._lock.release()
            raise ConfigError(
                f"{self.path} holds a run already: --resume auto continues it, another --output-dir starts a new one."
            )
        write_atomically(self.path / "config.toml", tomli_w.dumps(msgspec.to_builtins(config)))
        write_json(self.path / "run.json", _provenance(world))

    def check(self) -> None:
        """Make sure that the folder is still ours; see Lock.check."""
        self._lock.check()

    def write_status(self, status: Status) -> None:
        """Replace status.json."""
        write_json(self.path / "status.json", dataclasses.asdict(status))

    def stop_request(self) -> Reason:
        """Return what the file STOP asks for; it looks at most once a second and says nothing in between."""
        if time.monotonic() < self._next_look:
            return Reason.NONE
        self._next_look = time.monotonic() + 1
        return read_stop_file(self.path)[0]

    def clear_stop_request(self) -> None:
        """Remove a STOP that has been obeyed: for the time limit of another attempt, or one that the last one ended on.

        Any other stays, and stops this attempt too.
        """
        obeyed = self._before is not None and self._before.reason == Reason.USER.word
        reason, meant = read_stop_file(self.path)
        this = f"{self._env.get('TRAINER_JOB_ID', '')}/{self.attempt}"
        if obeyed or (reason == Reason.TIME_LIMIT and meant != this):
            (self.path / STOP_FILE).unlink(missing_ok=True)

    def fail(self, reason: str) -> None:
        """Record that the attempt ended in an error, and unlock the folder; leave it alone if it is another run's."""
        with contextlib.suppress(TrainerError, OSError):  # a full disk must not hide what went wrong
            self.check()
            before = self._read_status() or Status(attempt=self.attempt, state="running")
            saved = (self.checkpoints / "latest").resolve().name.removeprefix("step_")
            step = int(saved) if saved.isdecimal() else before.step
            failed = dataclasses.replace(
                before, attempt=self.attempt, state="failed", reason=reason, step=step, requeue=False
            )
            self.write_status(failed)
        self.close()

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def _read_status(self) -> Status | None:
        """Return the last status: status.json, or, where a job script has moved it aside, what that now is."""
        for name in ("status.json", "status.previous.json"):
            with contextlib.suppress(OSError, ValueError, TypeError):
                return Status(**json.loads((self.path / name).read_text(encoding="utf-8")))
        return None


def _provenance(world: World) -> dict[str, object]:
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "world_size": world.size,
        "variables": {name: os.environ[name] for name in RECORDED_VARIABLES if name in os.environ},
    }

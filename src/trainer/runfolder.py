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

import tomli_w
import torch

from slipway.errors import FolderHoldsRunError, FolderNotWritableError, SlipwayError, is_final, one_line
from slipway.files import write_atomically, write_json
from slipway.layout import (
    CHECKPOINTS,
    CONFIG,
    FIGURES,
    LOGS,
    METRICS,
    PROVENANCE,
    STATUS,
    STOP,
    verdict_file,
)
from slipway.lock import Lock, given_attempt
from slipway.stop import Reason, read_stop_file
from slipway.world import World
from trainer.config import Config, Launch, experiment
from trainer.errors import ConfigError, explain

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
    """How far one attempt is, and how it ended: the one line of status.json, for people and ``jobgen``."""

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

    @property
    def verdict(self) -> str:
        """STATE STEP REASON, as the job script reads them; see slipway.layout.VERDICTS."""
        state = "out-of-time" if self.requeue else self.state
        return f"{state} {self.step} {self.reason or 'complete'}"


class RunFolder:
    """An output directory, locked for one run at a time.

    An attempt opens it, records itself after the checks, and then concludes or fails. An attempt that fails before it
    has recorded itself is refused: a run that the folder holds stays as it was.
    """

    def __init__(self, path: Path, env: Mapping[str, str] = os.environ) -> None:
        """Describe the folder; ``open`` creates and locks it."""
        self.path = path
        self.metrics = path / METRICS
        self.figures = path / FIGURES
        self.logs = path / LOGS
        self.checkpoints = path / CHECKPOINTS
        self.attempt = 0
        """Number of this attempt, counted from 1; known once the folder is open."""
        self._before: Status | None = None
        self._stop_before: tuple[int, int] | None = None
        self._lock: Lock | None = None
        self._recorded = False
        self._next_look = 0.0
        self._env = env

    def open(self, launch: Launch) -> None:
        """Create and lock the folder.

        Only the run folder itself is private, and only where it is made here: what is below it follows the umask.

        Raises:
            RefusedError: if it cannot be written, another run is in it, or it holds one that is not to be resumed.
        """
        self._before = self._read_status()
        self._stop_before = self._stop_file()
        self.attempt = given_attempt(self._env) or 1 + self._last_attempt()
        lock = Lock(self.path, job_id=self._env.get("TRAINER_JOB_ID", ""), attempt=self.attempt)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock.acquire()
            for folder in (self.figures, self.logs, self.checkpoints):
                folder.mkdir(exist_ok=True)
            self.require_continuable(launch)
        except OSError as error:
            lock.release()
            raise FolderNotWritableError(folder=self.path, reason=error.strerror) from error
        except SlipwayError:
            lock.release()
            raise
        self._lock = lock

    def record(self, config: Config, world: World, launched: Mapping[str, object]) -> None:
        """Record what runs in the folder, and how: only after the check that this attempt may continue the run in it.

        Args:
            config: the experiment.
            world: the ranks that take part.
            launched: the settings of this launch as they were resolved.
        """
        self._recorded = True
        write_atomically(self.path / CONFIG, tomli_w.dumps(experiment(config)))
        write_json(self.path / PROVENANCE, _provenance(world) | {"launch": launched})

    def check(self) -> None:
        """Make sure that the folder is still ours; see Lock.check."""
        if self._lock:
            self._lock.check()

    def write_status(self, status: Status) -> None:
        """Replace status.json."""
        write_json(self.path / STATUS, dataclasses.asdict(status))

    def stop_request(self) -> Reason:
        """Return what the file STOP asks of this attempt.

        It looks at most once a second and says nothing in between. A time limit of an older attempt does not count.
        """
        if time.monotonic() < self._next_look:
            return Reason.NONE
        self._next_look = time.monotonic() + 1
        reason, meant = read_stop_file(self.path)
        number = meant.rpartition("/")[2]
        older = number.isdecimal() and int(number) < self.attempt
        return Reason.NONE if reason == Reason.TIME_LIMIT and older else reason

    def clear_stop_request(self) -> None:
        """Remove a STOP that does not mean this attempt; any other stays, and stops it.

        That is one for the time limit of another attempt; and one that lay there when this attempt began, where the
        last one had ended on it or the run was done.
        """
        before = self._before
        ended = before is not None and (before.reason == Reason.USER.word or before.state == "done")
        reason, meant = read_stop_file(self.path)
        this = f"{self._env.get('TRAINER_JOB_ID', '')}/{self.attempt}"
        if (ended and self._stop_file() == self._stop_before) or (reason == Reason.TIME_LIMIT and meant != this):
            (self.path / STOP).unlink(missing_ok=True)

    def conclude(self, status: Status) -> None:
        """Record that the attempt ended in good order, for people and for the job script, and unlock the folder."""
        self.write_status(status)
        self._write_verdict(status)
        self.close()

    def answer_job_script(self, status: Status) -> None:
        """Leave the verdict of an attempt that did not touch the run, if a job script waits for it."""
        if attempt := given_attempt(self._env):
            self._write_verdict(dataclasses.replace(status, attempt=attempt))

    def fail(self, error: BaseException) -> None:
        """Record that the attempt ended in ``error``, and unlock the folder; leave it alone if it is another run's.

        There is a verdict only where trying again unchanged cannot help. A refused attempt leaves one if its number is
        the job script's, and nothing else where the folder holds a run or is in use.
        """
        text = explain(error) if isinstance(error, SlipwayError) else str(error).partition("\n")[0]
        reason = one_line(text) or type(error).__name__
        with contextlib.suppress(SlipwayError, OSError):  # a full disk must not hide what went wrong
            self.check()
            given = given_attempt(self._env)
            failed = self._failed(reason, attempt=self.attempt or given)
            if is_final(error) and (self._recorded or given):
                with contextlib.suppress(OSError):
                    self._write_verdict(failed)
            if self._recorded or (self._lock and not self.holds_run()):
                self.write_status(failed)
        self.close()

    def close(self) -> None:
        """Unlock the folder."""
        if self._lock:
            self._lock.release()

    def _write_verdict(self, status: Status) -> None:
        write_atomically(self.path / verdict_file(status.attempt), status.verdict + "\n")

    def _failed(self, reason: str, *, attempt: int) -> Status:
        """Return the status of an attempt that has failed, at the step that was saved last."""
        before = (self._read_status() if self._recorded else None) or Status(attempt=attempt, state="running")
        saved = (self.checkpoints / "latest").resolve().name.removeprefix("step_")
        step = int(saved) if saved.isdecimal() else before.step
        return dataclasses.replace(before, attempt=attempt, state="failed", reason=reason, step=step, requeue=False)

    def require_continuable(self, launch: Launch) -> None:
        """Raise a RefusedError if the folder holds a run and ``launch`` does not continue it."""
        if self.holds_run() and launch.self_test:
            raise ConfigError(f"{self.path} holds a run already. --self-test needs another --output-dir.")
        if self.holds_run() and not launch.resume:
            raise FolderHoldsRunError(folder=self.path)

    def holds_run(self) -> bool:
        """Return whether there is a checkpoint, or what is left of one."""
        return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    def _stop_file(self) -> tuple[int, int] | None:
        """Return what tells the STOP that is there from a later one; None if there is none."""
        try:
            stat = (self.path / STOP).stat()
        except OSError:
            return None
        return stat.st_ino, stat.st_mtime_ns

    def _last_attempt(self) -> int:
        """Return the largest number of an attempt that status.json, a folder of logs or a verdict names; 0 if none."""
        numbers = [self._before.attempt if self._before else 0]
        numbers += [int(path.name) for path in self.logs.glob("*") if path.name.isdecimal()]
        for path in self.path.glob("*"):
            number = path.name.rpartition(".")[2]
            if number.isdecimal() and path.name == verdict_file(int(number)):
                numbers.append(int(number))
        return max(numbers)

    def _read_status(self) -> Status | None:
        """Return what status.json says; None where it is missing or makes no sense."""
        with contextlib.suppress(OSError, ValueError, TypeError):
            found = dict(json.loads((self.path / STATUS).read_text(encoding="utf-8")))
            known = {field.name for field in dataclasses.fields(Status)}
            return Status(**{name: value for name, value in found.items() if name in known})
        return None


def refuse(launch: Launch, error: SlipwayError, env: Mapping[str, str] = os.environ) -> None:
    """Leave the verdict of an attempt that ``error`` ended before its ranks had joined.

    Rank 0 leaves it, by RANK. Where the launcher sets none, any rank does: ranks that MPI starts do not know their
    numbers yet, and these errors are of the configuration, the same on all of them.
    """
    if launch.output_dir and env.get("RANK", "0") == "0":
        RunFolder(Path(launch.output_dir), env).fail(error)


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

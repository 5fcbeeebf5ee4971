"""Paths and contents of a run folder on disk. Only rank 0 uses it.

docs/reference/run-folder.md lists its files; ``slipway.run.attempt`` decides who may write them and when.
"""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from slipway.base.contract import (
    CHECKPOINTS,
    CONFIG,
    FIGURES,
    GOODPUT,
    LATEST,
    LOGS,
    METRICS,
    PROVENANCE,
    STATUS,
    checkpoint_step,
    verdict_file,
)
from slipway.base.environment import Environment
from slipway.base.errors import FolderHoldsRunError, NotAFileError, reason_of
from slipway.run.job import JobFolder
from slipway.run.status import Status, read_status


class RunFolder:
    """The output directory of one run."""

    def __init__(self, path: Path) -> None:
        """Describe the folder ``path``, which may not exist yet."""
        self.path = path
        self.metrics = path / METRICS
        self.goodput = path / GOODPUT
        self.figures = path / FIGURES
        self.logs = path / LOGS
        self.checkpoints = path / CHECKPOINTS

    @property
    def is_run_folder(self) -> bool:
        """Whether the folder ``checkpoints`` holds a checkpoint or anything else."""
        return self.checkpoints.is_dir() and any(self.checkpoints.iterdir())

    def require_no_run(self) -> None:
        """Raise a FolderHoldsRunError if the folder holds a run, which a new run would overwrite."""
        if self.is_run_folder:
            raise FolderHoldsRunError(folder=self.path)

    def require_files(self) -> None:
        """Raise a NotAFileError if a folder, a FIFO or the like has the name of a file that a run writes."""
        for name in (STATUS, PROVENANCE, CONFIG, METRICS, GOODPUT):
            path = self.path / name
            if path.exists() and not path.is_file():
                raise NotAFileError(path=path, kind="a folder" if path.is_dir() else "not a regular file")

    def refuse(self, error: BaseException, environment: Environment) -> None:
        """Write the verdict of an attempt that ``error`` ended before it owned the folder, if a job waits for it."""
        self.write_verdict_if_awaited(
            Status(attempt=0, state="failed", reason=reason_of(error), step=self.last_step), environment
        )

    def write_verdict_if_awaited(self, status: Status, environment: Environment) -> None:
        """Write the verdict of an attempt that does not change the run, if a job script waits for it."""
        if environment.attempt:
            with contextlib.suppress(OSError):
                job = JobFolder(self.path, environment)
                job.write_verdict(dataclasses.replace(status, attempt=environment.attempt))

    @property
    def last_step(self) -> int:
        """The last saved step, from ``latest`` or else the status file; 0 if neither exists."""
        step = checkpoint_step((self.checkpoints / LATEST).resolve().name)
        if step is not None:
            return step
        status = read_status(self.path)
        return status.step if status else 0

    @property
    def last_attempt(self) -> int:
        """The largest attempt number in status.json, the names in logs, and the verdicts' names; 0 if none."""
        status = read_status(self.path)
        numbers = [status.attempt if status else 0]
        numbers += [int(path.name) for path in self.logs.glob("*") if path.name.isdecimal()]
        for path in self.path.glob("*"):
            number = path.name.rpartition(".")[2]
            if number.isdecimal() and path.name == verdict_file(int(number)):
                numbers.append(int(number))
        return max(numbers)

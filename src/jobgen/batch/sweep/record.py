"""``sweep.json``, the file of a sweep folder, which ``jobgen sweep`` writes (docs/contract.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Literal, Optional

import msgspec

from jobgen.batch.record import RunSet, has, read, require_runs_inside

SWEEP = "sweep.json"
Goal = Literal["max", "min"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial's entry in ``sweep.json``."""

    name: str
    run: str
    values: Dict[str, str]
    """Values by key."""
    seed: int
    """Index of the repetition with these values, from 0."""
    rung: int
    """Index of the rung of its last submission, from 0."""
    submitted: Optional[str] = None
    job: Optional[str] = None


class SweepFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``sweep.json``."""

    schema: Literal[1] = 1
    kind: Literal["sweep"] = "sweep"
    scheduler: str
    metric: str
    goal: Goal
    seeds: int
    rungs: List[int]
    """Epochs at the ends of the rungs; [] without rungs."""
    axes: Dict[str, str]
    """The values of each key as given on the command line."""
    trials: List[Trial]


class Sweep(RunSet[Trial]):
    """A sweep folder."""

    file = SWEEP

    def __init__(self, folder: Path, content: SweepFile, *, found: bytes = b"") -> None:
        """Create the record of the sweep in ``folder``; ``found``: the file's bytes, empty if it did not exist."""
        super().__init__(folder, content.scheduler, content.trials, found=found)
        self._content = content
        self.metric, self.goal, self.rungs = content.metric, content.goal, content.rungs

    def content(self) -> SweepFile:
        """Return the file's content."""
        return msgspec.structs.replace(self._content, trials=list(self.entries.values()))

    def promote(self, names: List[str], rung: int) -> None:
        """Move the trials ``names`` to ``rung``."""
        for name in names:
            self.entries[name] = msgspec.structs.replace(self.entries[name], rung=rung)


def is_sweep(folder: Path) -> bool:
    """Return whether ``folder`` contains a sweep.

    Raises:
        JobgenError: if the folder cannot be read.
    """
    return has(folder, SWEEP)


def read_sweep(folder: Path) -> Sweep:
    """Return the sweep in ``folder``.

    Raises:
        JobgenError: if the file cannot be read, or has another version's format.
    """
    content, found = read(folder, SWEEP, SweepFile, command="jobgen sweep")
    require_runs_inside(folder / SWEEP, content.trials)
    return Sweep(folder, content, found=found)

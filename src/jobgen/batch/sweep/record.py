"""``sweep.json``: what a sweep folder holds, written by ``jobgen sweep`` and read by everybody else.

docs/contract.md describes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Literal, Optional

import msgspec

from jobgen.batch.record import RunSet, has, read, refuse_outside

SWEEP = "sweep.json"
Goal = Literal["max", "min"]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """A trial as it stands in the file."""

    name: str
    run: str
    values: Dict[str, str]
    """By key."""
    seed: int
    """Which of the repetitions with these values it is, from 0 on."""
    rung: int
    """The rung that it was submitted for last: its place in the list of rungs, from 0 on."""
    submitted: Optional[str] = None
    job: Optional[str] = None


class SweepFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: Literal[1] = 1
    kind: Literal["sweep"] = "sweep"
    scheduler: str
    metric: str
    goal: Goal
    seeds: int
    rungs: List[int]
    """Epochs; [] where all trials train to the end at once."""
    axes: Dict[str, str]
    """The values of each key as they were given."""
    trials: List[Trial]


class Sweep(RunSet[Trial]):
    """A sweep folder."""

    file = SWEEP

    def __init__(self, folder: Path, content: SweepFile, *, found: bytes = b"") -> None:
        """Describe the sweep in ``folder``, whose file was ``found``."""
        super().__init__(folder, content.scheduler, content.trials, found=found)
        self._content = content
        self.metric, self.goal, self.rungs = content.metric, content.goal, content.rungs

    def content(self) -> SweepFile:
        """Return what the file holds."""
        return msgspec.structs.replace(self._content, trials=list(self.entries.values()))

    def promote(self, names: List[str], rung: int) -> None:
        """Let the trials ``names`` be of ``rung`` from now on."""
        for name in names:
            self.entries[name] = msgspec.structs.replace(self.entries[name], rung=rung)


def is_sweep(folder: Path) -> bool:
    """Return whether ``folder`` holds a sweep.

    Raises:
        JobgenError: if it may not be read.
    """
    return has(folder, SWEEP)


def read_sweep(folder: Path) -> Sweep:
    """Return the sweep in ``folder``.

    Raises:
        JobgenError: if it cannot be read, or is another version's.
    """
    content, found = read(folder, SWEEP, SweepFile, command="jobgen sweep")
    refuse_outside(folder / SWEEP, content.trials)
    return Sweep(folder, content, found=found)

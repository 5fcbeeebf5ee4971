"""``sweep.json``, the file of a sweep folder, which ``jobgen sweep`` writes (docs/reference/run-folder.md)."""

from __future__ import annotations

from typing import Dict, List, Literal, Optional

import msgspec

from jobgen.batch.record import RunSet

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
    entries: List[Trial] = msgspec.field(name="trials")


class Sweep(RunSet[Trial, SweepFile]):
    """A sweep folder."""

    kind = "sweep"
    format = SweepFile

    def promote(self, names: List[str], rung: int) -> None:
        """Move the trials ``names`` to ``rung``."""
        for name in names:
            self.entries[name] = msgspec.structs.replace(self.entries[name], rung=rung)

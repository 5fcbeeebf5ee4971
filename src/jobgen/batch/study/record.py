"""``study.json``, the file of a study folder, which ``jobgen study`` writes (docs/contract.md)."""

from __future__ import annotations

from pathlib import Path
from typing import List, Literal, Optional

import msgspec

from jobgen.batch.record import RunSet, has, read, require_runs_inside
from jobgen.batch.states import RunState, queue_time_text, table

STUDY = "study.json"


class StudyEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A point's entry in ``study.json``."""

    name: str
    run: str
    nodes: int
    ranks: int
    cpus: int
    backend: str
    container: bool
    gpus: int
    """GPUs over all nodes."""
    submitted: Optional[str] = None
    job: Optional[str] = None


class StudyFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of ``study.json``."""

    schema: Literal[1] = 1
    kind: Literal["study"] = "study"
    scaling: Literal["strong", "weak"]
    scheduler: str
    points: List[StudyEntry]


class Study(RunSet[StudyEntry]):
    """A study folder."""

    file = STUDY

    def __init__(
        self,
        folder: Path,
        scheduler: str,
        entries: List[StudyEntry],
        *,
        scaling: Literal["strong", "weak"],
        found: bytes = b"",
    ) -> None:
        """Create the record of the study in ``folder``; arguments as in RunSet."""
        super().__init__(folder, scheduler, entries, found=found)
        self.scaling = scaling

    def content(self) -> StudyFile:
        """Return the file's content."""
        return StudyFile(scaling=self.scaling, scheduler=self.scheduler, points=list(self.entries.values()))


def is_study(folder: Path) -> bool:
    """Return whether ``folder`` contains a study.

    Raises:
        JobgenError: if the folder cannot be read.
    """
    return has(folder, STUDY)


def read_study(folder: Path) -> Study:
    """Return the study in ``folder``.

    Raises:
        JobgenError: if the file cannot be read, or has another version's format.
    """
    content, found = read(folder, STUDY, StudyFile, command="jobgen study")
    require_runs_inside(folder / STUDY, content.points)
    return Study(folder, content.scheduler, content.points, scaling=content.scaling, found=found)


def lines_of(states: List[RunState[StudyEntry]]) -> List[str]:
    """Return the status table: one line for each point."""
    rows = [["point", "state", "queue", "what"]]
    return table(rows + [[state.entry.name, state.state, queue_time_text(state), state.about] for state in states])

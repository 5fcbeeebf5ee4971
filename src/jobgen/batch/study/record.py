"""``study.json``, the file of a study folder, which ``jobgen study`` writes (docs/reference/run-folder.md)."""

from __future__ import annotations

from typing import List, Literal, Optional

import msgspec

from jobgen.batch.record import RunSet
from jobgen.batch.states import RunState, queue_time_text, table


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
    entries: List[StudyEntry] = msgspec.field(name="points")


class Study(RunSet[StudyEntry, StudyFile]):
    """A study folder."""

    kind = "study"
    format = StudyFile


def lines_of(states: List[RunState[StudyEntry]]) -> List[str]:
    """Return the status table: one line for each point."""
    rows = [["point", "state", "queue", "what"]]
    return table(rows + [[state.entry.name, state.state, queue_time_text(state), state.about] for state in states])

"""``study.json``: what a study folder holds, written by ``jobgen study`` and read by everybody else.

docs/contract.md describes it.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Literal, Optional

import msgspec

from jobgen.runsets.record import RunSet, has, read, refuse_outside

STUDY = "study.json"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A point as it stands in the file."""

    name: str
    run: str
    nodes: int
    ranks: int
    cpus: int
    backend: str
    container: bool
    gpus: int
    """Of all nodes."""
    submitted: Optional[str] = None
    job: Optional[str] = None


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    schema: Literal[1] = 1
    kind: Literal["study"] = "study"
    scaling: Literal["strong", "weak"]
    scheduler: str
    points: List[Entry]


class Study(RunSet[Entry]):
    """A study folder."""

    file = STUDY

    def __init__(
        self,
        folder: Path,
        scheduler: str,
        entries: List[Entry],
        *,
        scaling: Literal["strong", "weak"],
        found: bytes = b"",
    ) -> None:
        """Describe the study in ``folder``, whose jobs are those of ``scheduler``, and whose file was ``found``."""
        super().__init__(folder, scheduler, entries, found=found)
        self.scaling = scaling

    def content(self) -> Content:
        """Return what the file holds."""
        return Content(scaling=self.scaling, scheduler=self.scheduler, points=list(self.entries.values()))


def is_study(folder: Path) -> bool:
    """Return whether ``folder`` holds a study.

    Raises:
        JobgenError: if it may not be read.
    """
    return has(folder, STUDY)


def read_study(folder: Path) -> Study:
    """Return the study in ``folder``.

    Raises:
        JobgenError: if it cannot be read, or is another version's.
    """
    content, found = read(folder, STUDY, Content, command="jobgen study")
    refuse_outside(folder / STUDY, content.points)
    return Study(folder, content.scheduler, content.points, scaling=content.scaling, found=found)

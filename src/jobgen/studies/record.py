"""``study.json``: what a study folder holds, written by ``jobgen study`` and read by everybody else.

    {"schema": 1, "kind": "study", "scaling": "strong", "scheduler": "slurm", "points": [
        {"name": "nodes1-ranks2-cpus4", "run": "nodes1-ranks2-cpus4", "nodes": 1, "ranks": 2, "cpus": 4,
         "backend": "ddp", "container": true, "gpus": 2, "submitted": "2026-01-31T12:00:00+0100", "job": "4711"}]}

``run`` is a folder in that of the study; ``gpus`` are those of all nodes; ``submitted`` and ``job`` are null until the
point has been submitted, and name its last submission.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional

from jobgen.errors import JobgenError
from slipway.reading import read_start

STUDY = "study.json"
SCHEMA = 1
LIMIT = 1 << 22
"""Bytes that are read of it: ten thousand points."""


class Entry(NamedTuple):
    """A point as it stands in the file."""

    name: str
    run: str
    nodes: int
    ranks: int
    cpus: int
    backend: str
    container: bool
    gpus: int
    submitted: Optional[str] = None
    job: Optional[str] = None


class Study:
    """A study folder."""

    def __init__(self, folder: Path, scaling: str, scheduler: str, entries: List[Entry]) -> None:
        """Describe the study in ``folder``, whose jobs are those of ``scheduler``."""
        self.folder, self.scaling, self.scheduler = folder, scaling, scheduler
        self.entries = {entry.name: entry for entry in entries}

    def run_folder(self, entry: Entry) -> Path:
        """Return where the run of a point is."""
        return self.folder / entry.run

    def submitted(self, name: str, job: str) -> None:
        """Note that the point ``name`` has just been submitted as ``job``, and write the file."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        self.entries[name] = self.entries[name]._replace(submitted=now, job=job)
        self.write()

    def write(self) -> None:
        """Write the file: the old one, or the new one whole.

        Raises:
            JobgenError: if that is impossible.
        """
        points = [entry._asdict() for entry in self.entries.values()]
        head = {"schema": SCHEMA, "kind": "study", "scaling": self.scaling, "scheduler": self.scheduler}
        text = json.dumps({**head, "points": points}, indent=1)
        path = self.folder / STUDY
        temporary = path.with_name(f".{STUDY}.{os.getpid()}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text + "\n", encoding="utf-8")
            os.replace(temporary, path)  # noqa: PTH105 -- pathlib has the same, and no other function here needs it
        except OSError as error:
            raise JobgenError(f"cannot write {path}: {error.strerror}.") from error


def is_study(folder: Path) -> bool:
    """Return whether ``folder`` holds a study."""
    return (folder / STUDY).is_file()


def read_study(folder: Path) -> Study:
    """Return the study in ``folder``.

    Raises:
        JobgenError: if it cannot be read, or is another version's.
    """
    path = folder / STUDY
    try:
        found: Dict[str, Any] = json.loads(read_start(path, limit=LIMIT))
        if found["schema"] != SCHEMA or found["kind"] != "study":
            raise JobgenError(f"{path} is of schema {found['schema']!r}, kind {found['kind']!r}: use its own jobgen.")
        entries = [Entry(**point) for point in found["points"]]
        for entry in entries:
            if not re.fullmatch(r"[\w][\w.-]*", entry.run, flags=re.ASCII):
                raise JobgenError(f"{path}: the run {entry.run[:60]!r} is no folder of the study.")
    except OSError as error:
        raise JobgenError(f"cannot read {path}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise JobgenError(
            f"{path} is no study that `jobgen study` wrote ({error}): remove it to begin anew."
        ) from error
    return Study(folder, found["scaling"], found["scheduler"], entries)

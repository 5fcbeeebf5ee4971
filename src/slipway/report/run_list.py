"""Reading of studies and sweeps: the file that lists their runs, and the runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Protocol, TypeVar

import msgspec
from markupsafe import Markup

from slipway.report.files.attempts import json_of
from slipway.report.files.untrusted_folder import Folder
from slipway.report.run_page import RunSummary, is_run_folder, read_run

SCHEMA = 1
MOST_BYTES = 1 << 24
"""Maximum number of bytes read from a file: enough for tens of thousands of runs."""


class ListedRun(Protocol):
    """An element of the list."""

    @property
    def name(self) -> str:
        """The name of the run."""
        ...

    @property
    def run(self) -> str:
        """The run folder, as a relative path below the file's folder."""
        ...


E = TypeVar("E", bound=ListedRun)


@dataclasses.dataclass
class RunSet:
    """The section of a study or a sweep, and its runs."""

    section: Markup
    runs: list[RunSummary]
    warnings: list[str]


def read_description(folder: Folder, file: str) -> dict[str, Any]:
    """Return the contents of study.json or sweep.json; warn if its schema or kind is unknown."""
    description = json_of(folder, file, limit=MOST_BYTES)
    kind = file.partition(".")[0]
    if description and (description.get("schema"), description.get("kind")) != (SCHEMA, kind):
        folder.warn(f"{file}: schema and kind are not {SCHEMA} and {kind}: only the known keys are read")
    return description


def read_runs(folder: Folder, listed: Iterable[E], *, first: int) -> list[tuple[E, RunSummary | None]]:
    """Return each listed run with its summary, None if its folder holds no run.

    Args:
        folder: the folder of the study or sweep; gets the runs' warnings.
        listed: the result of ``below``.
        first: the sections of the runs have consecutive ids from run-``first``.
    """
    found: list[tuple[E, RunSummary | None]] = []
    number = first
    for entry in listed:
        inner = Folder(folder.path, below=entry.run)
        run = None
        if is_run_folder(inner):
            run = read_run(inner, name=entry.name, anchor=f"run-{number}", images=False)
            number += 1
            folder.warnings += [f"{entry.run}: {warning}" for warning in run.warnings]
        found.append((entry, run))
    return found


def below(folder: Folder, file: str, entries: object, kind: type[E], *, what: str, most: int) -> list[E]:
    """Return the first ``most`` valid ``entries`` of a list in ``file``; warn about invalid ones.

    Args:
        folder: the folder that holds the file.
        file: the file's name.
        entries: the untrusted list.
        kind: the msgspec.Struct of an entry.
        what: the name of an entry in warnings.
        most: the maximum number of entries to read.
    """
    found = []
    for number, entry in enumerate(entries[:most] if isinstance(entries, list) else [], start=1):
        try:
            read = msgspec.convert(entry, kind)
        except msgspec.ValidationError as error:
            folder.warn(f"{file}: {what} {number} is omitted: {error}")
            continue
        path = PurePosixPath(read.run)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in read.run:
            folder.warn(f"{file}: {what} {number} is omitted: its run is not a path below the {file.partition('.')[0]}")
            continue
        found.append(read)
    if isinstance(entries, list) and len(entries) > most:
        folder.warn(f"{file}: {len(entries)} {what}s; only the first {most} are shown")
    if not found:
        folder.warn(f"{file}: no valid {what}s")
    return found

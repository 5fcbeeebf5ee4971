"""What the files of studies and sweeps have in common: a list of runs, each in a folder below."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Protocol, TypeVar

import msgspec

from slipway.report.untrusted_folder import Folder

MOST_BYTES = 1 << 24
"""Of a file that are read: ten thousands of runs."""


class ListedRun(Protocol):
    """An element of the list."""

    @property
    def run(self) -> str:
        """Its run folder, as a path relative to the file's folder and below it."""
        ...


E = TypeVar("E", bound=ListedRun)


def below(folder: Folder, file: str, entries: object, kind: type[E], *, what: str, most: int) -> list[E]:
    """Return the ``entries`` of a list in ``file``, the first ``most``; one that makes no sense is warned of.

    Args:
        folder: that holds the file.
        file: its name.
        entries: what it says; anything.
        kind: the msgspec.Struct of an entry.
        what: an entry is called.
        most: that are read.
    """
    found = []
    for number, entry in enumerate(entries[:most] if isinstance(entries, list) else [], start=1):
        try:
            read = msgspec.convert(entry, kind)
        except msgspec.ValidationError as error:
            folder.warn(f"{file}: {what} {number} is left out: {error}")
            continue
        path = PurePosixPath(read.run)
        if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in read.run:
            folder.warn(f"{file}: {what} {number} is left out: its run is no path below the {file.partition('.')[0]}")
            continue
        found.append(read)
    if isinstance(entries, list) and len(entries) > most:
        folder.warn(f"{file}: {len(entries)} {what}s, of which the first {most} are shown")
    if not found:
        folder.warn(f"{file}: it has no {what}s")
    return found

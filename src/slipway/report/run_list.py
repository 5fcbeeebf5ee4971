"""Reading of the list of runs in the files of studies and sweeps."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Protocol, TypeVar

import msgspec

from slipway.report.untrusted_folder import Folder

MOST_BYTES = 1 << 24
"""Maximum number of bytes read from a file: enough for tens of thousands of runs."""


class ListedRun(Protocol):
    """An element of the list."""

    @property
    def run(self) -> str:
        """The run folder, as a relative path below the file's folder."""
        ...


E = TypeVar("E", bound=ListedRun)


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

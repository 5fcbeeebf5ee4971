"""Who may write what a job runs: the rule of jobscripts/lib/owners.bash, before a job waits in a queue for it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Iterable, Iterator, Optional

from jobgen.errors import JobgenError


def shared(paths: Iterable[Path], *, owner: Optional[int] = None, group: bool = False) -> Iterator[JobgenError]:
    """Yield the first of ``paths`` that somebody else owns or may write, as an error.

    Args:
        paths: what is to be run, and the folders that hold it; what is not there is left to others to miss.
        owner: the number of a user who may own them, besides this one and root.
        group: whether the group may write them.
    """
    writers = stat.S_IWOTH if group else stat.S_IWOTH | stat.S_IWGRP
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue
        if found.st_uid not in {os.geteuid(), 0, owner} or found.st_mode & writers:
            yield JobgenError(
                "writable-by-others",
                f"{path} would be run, and others own it or can write it ({stat.filemode(found.st_mode)}, user "
                f"{found.st_uid}): look into it, then chmod go-w, or take your own.",
            )
            return


def shared_library(folder: Path, *, named: bool) -> Iterator[JobgenError]:
    """Yield why a job would not run the library ``folder``, as an error.

    Args:
        folder: of the library.
        named: whether the user has named it, and with it its owner, rather than found it in the current folder.
    """
    folder = folder.resolve()
    if folder.is_dir():
        owner = folder.stat().st_uid if named else None
        yield from shared([folder, *sorted(folder.iterdir())], owner=owner, group=_is_closed(folder))


def _is_closed(path: Path) -> bool:
    """Return whether a folder above ``path`` is the user's, and nobody else may enter it."""
    above = [folder.stat() for folder in path.parents]
    return any(one.st_uid == os.geteuid() and not one.st_mode & (stat.S_IXGRP | stat.S_IXOTH) for one in above)

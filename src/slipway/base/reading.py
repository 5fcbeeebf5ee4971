"""Reading files that somebody else has written: never more than a limit, and nothing that blocks."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Tuple, Union

SMALL = 1 << 16
"""Bytes that a file of one line has at most."""


def read_whole(path: Union[str, Path]) -> bytes:
    """Return the content of a file.

    Raises:
        OSError: as ``read_start``.
    """
    return _read(path, limit=-1)[0]


def read_start(path: Union[str, Path], *, limit: int) -> bytes:
    """Return the first ``limit`` bytes of a file.

    Raises:
        OSError: if it cannot be read, or is no regular file: a FIFO would be waited for, a device never ends.
    """
    return _read(path, limit=limit)[0]


def read_end(path: Union[str, Path], *, limit: int) -> Tuple[bytes, bool]:
    """Return the last ``limit`` bytes of a file, and whether that is all of it.

    Raises:
        OSError: as ``read_start``.
    """
    return _read(path, limit=limit, from_end=True)


def open_regular(path: Union[str, Path]) -> BinaryIO:
    """Open a file to read bytes.

    Raises:
        OSError: as ``read_start``.
    """
    file = open(path, "rb", opener=open_without_waiting)  # noqa: SIM115 -- the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    os.set_blocking(file.fileno(), True)  # some file systems would not wait for a file that lies on a tape
    return file


def _read(path: Union[str, Path], *, limit: int, from_end: bool = False) -> Tuple[bytes, bool]:
    with open_regular(path) as file:
        start = max(os.fstat(file.fileno()).st_size - limit, 0) if from_end else 0
        file.seek(start)
        return file.read(limit), start == 0


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file, as an ``opener`` of ``open``, without waiting for the other end of a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)

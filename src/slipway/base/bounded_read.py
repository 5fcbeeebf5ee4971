"""Bounded, non-blocking reads of files that another program wrote."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Tuple, Union

SMALL = 1 << 16
"""Maximum bytes of a one-line file."""


def read_whole(path: Union[str, Path]) -> bytes:
    """Return the complete content of a file.

    Raises:
        OSError: as for ``read_head``.
    """
    return _read(path, limit=-1)[0]


def read_head(path: Union[str, Path], *, limit: int) -> bytes:
    """Return the first ``limit`` bytes of a file.

    Raises:
        OSError: if the file cannot be read, or is not a regular file: a FIFO would block, a device may never end.
    """
    return _read(path, limit=limit)[0]


def read_tail(path: Union[str, Path], *, limit: int) -> Tuple[bytes, bool]:
    """Return the last ``limit`` bytes of a file, and whether they are the complete file.

    Raises:
        OSError: as for ``read_head``.
    """
    return _read(path, limit=limit, from_end=True)


def open_regular(path: Union[str, Path]) -> BinaryIO:
    """Open a regular file for reading bytes.

    Raises:
        OSError: as for ``read_head``.
    """
    file = open(path, "rb", opener=open_nonblocking)  # noqa: SIM115 -- the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    os.set_blocking(file.fileno(), True)  # without blocking mode, some file systems do not wait for a file on tape
    return file


def _read(path: Union[str, Path], *, limit: int, from_end: bool = False) -> Tuple[bytes, bool]:
    with open_regular(path) as file:
        start = max(os.fstat(file.fileno()).st_size - limit, 0) if from_end else 0
        file.seek(start)
        return file.read(limit), start == 0


def open_nonblocking(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a FIFO; for the ``opener`` argument of ``open``."""
    return os.open(path, flags | os.O_NONBLOCK, 0o666)

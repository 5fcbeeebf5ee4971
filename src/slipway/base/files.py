"""Atomic, durable writes: after a power cut, a file is either complete or absent."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slipway.base.bounded_read import open_nonblocking
from slipway.base.errors import warn

log = logging.getLogger(__name__)


def write_atomically(path: Path, text: str) -> None:
    """Atomically replace ``path`` by a file that contains ``text``."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file's path; the file replaces ``path`` after the body, unless the body raises an error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}{path.suffix}")
    temporary.touch()
    mode = temporary.stat().st_mode  # the mode by the umask; safetensors creates files with mode 0600
    try:
        yield temporary
        temporary.chmod(mode)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Atomically replace ``path`` by ``value`` as one line of JSON."""
    write_atomically(path, json.dumps(value) + "\n")


def sync_folder(folder: Path) -> None:
    """Make the file names in ``folder`` durable (fsync(2) of a file does not cover its name)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that does not support it
            raise
    finally:
        os.close(descriptor)


def replace_symlink(link: Path, target: str) -> None:
    """Atomically point the symbolic link ``link`` to ``target``; only one process may do so at a time.

    The temporary name is always the same: a call removes what a process that was killed in an earlier call has left.
    """
    temporary = link.with_name(f".{link.name}.new")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target)
    try:
        temporary.replace(link)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(link.parent)


MAX_UNWRITTEN_BYTES = 1 << 26
"""Maximum bytes that a LineFile buffers while the disk accepts no writes; further lines are lost."""


class LineFile:
    """Append-only file of lines that can be read while it grows.

    If lines cannot be written, for example because the disk is full, they are kept in memory and written before the
    next line.
    """

    def __init__(self, path: Path) -> None:
        """Open ``path`` for appending, and create it if it does not exist."""
        self._path = path
        self._file = open(path, "ab", buffering=0, opener=open_nonblocking)  # noqa: SIM115 -- until close
        self._unwritten = bytearray()
        self._failing = False
        self._lost = 0

    def append(self, line: str) -> None:
        """Append ``line``, or keep it in memory if it cannot be written now."""
        if len(self._unwritten) < MAX_UNWRITTEN_BYTES:
            self._unwritten += line.encode() + b"\n"
        else:
            self._lost += 1
        try:
            self._write()
        except OSError as error:
            if not self._failing:
                warn(
                    log,
                    "cannot-append",
                    "%s cannot be written: %s; its lines are kept in memory",
                    self._path,
                    error.strerror,
                )
            self._failing = True
        else:
            if self._failing:
                warn(log, "cannot-append", "%s can be written again; %s", self._path, self._loss())
            self._failing = False

    def close(self) -> None:
        """Make all lines durable.

        Raises:
            OSError: if they cannot be written.
        """
        with self._file:
            try:
                self._write()
                os.fsync(self._file.fileno())
            except OSError as error:
                raise OSError(
                    error.errno, f"the last lines cannot be written: {error.strerror}", str(self._path)
                ) from error

    def _loss(self) -> str:
        return f"{self._lost} lines are lost" if self._lost else "it is complete"

    def _write(self) -> None:
        while self._unwritten:
            # A full disk may accept only the beginning of a line; the next write continues after it.
            count = self._file.write(self._unwritten)
            del self._unwritten[:count]

"""Reading a folder that somebody else has filled, who may mean harm.

No symbolic link below the folder is followed, nothing that could block is waited for, and no more than a limit is
read. What cannot be read is named in a warning; what is not there is not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from slipway.base.bounded_read import SMALL
from slipway.base.errors import one_line

LONGEST_LINE = 1 << 16
"""Bytes of a line of metrics.jsonl from which on it is no record."""


class Folder:
    """A folder, and what went wrong while it was read."""

    def __init__(self, path: Path, *, below: str = "") -> None:
        """Read the folder ``below``, a relative path, of ``path``; ``path`` itself may be a symbolic link."""
        self.path = path
        self.below = PurePosixPath(below)
        self.warnings: list[str] = []

    @property
    def name(self) -> str:
        """The name that people know the folder by."""
        return self.below.name or Path(os.path.abspath(self.path)).name or "/"  # noqa: PTH100 -- keeps links

    def warn(self, text: str) -> None:
        """Keep ``text``, one line about what could not be read, for the page and for stderr; each once."""
        text = one_line(text)
        if text not in self.warnings:
            self.warnings.append(text)

    def has(self, name: str) -> bool:
        """Return whether there is something of this name, readable or not."""
        try:
            with self._parent_of(name) as (parent, last):
                os.stat(last, dir_fd=parent, follow_symlinks=False)
        except OSError:
            return False
        return True

    def read(self, name: str, *, limit: int = SMALL) -> bytes | None:
        """Return the first ``limit`` bytes of a file; None, with a warning unless it is missing, if it cannot."""
        content = None
        with self._reported(name), self._open(name) as file:
            content = file.read(limit + 1)
        if content is not None and len(content) > limit:
            self.warn(f"{name}: only its first {limit} bytes are read")
        return content if content is None else content[:limit]

    def read_end(self, name: str, *, limit: int = SMALL) -> bytes | None:
        """Return the last ``limit`` bytes of a file; None as ``read`` does."""
        content = None
        with self._reported(name), self._open(name) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - limit, 0))
            content = file.read(limit)
        return content  # noqa: RET504 -- after an error, which _reported takes, it is None

    def text(self, name: str, *, limit: int = SMALL) -> str | None:
        """Return the same as text; bytes that are not UTF-8 are replaced, with a warning."""
        content = self.read(name, limit=limit)
        if content is None:
            return None
        text = content.decode(errors="replace")
        # A cut at the limit may split the last letter; that has its warning already.
        if "\ufffd" in text[:-1]:
            self.warn(f"{name}: not all of it is UTF-8")
        return text

    def lines(self, name: str, *, limit: int) -> Iterator[bytes]:
        """Yield the lines of the first ``limit`` bytes of a file; a line that is too long comes in parts."""
        with self._reported(name), self._open(name) as file:
            left = limit
            while line := file.readline(LONGEST_LINE):
                left -= len(line)
                if left < 0:
                    self.warn(f"{name}: only its first {limit} bytes are read")
                    return
                yield line

    def modified(self, name: str) -> float | None:
        """Return when a regular file was written last, in seconds since the epoch; None if there is none."""
        with contextlib.suppress(OSError), self._parent_of(name) as (parent, last):
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                return found.st_mtime
        return None

    def link(self, name: str) -> str:
        """Return where a symbolic link points to; "" if it is none. What is there is not looked at."""
        with contextlib.suppress(OSError), self._parent_of(name) as (parent, last):
            return os.readlink(last, dir_fd=parent)
        return ""

    def names(self, name: str) -> list[str]:
        """Return the names in a folder, sorted; none if there is no such folder."""
        found: list[str] = []
        with self._reported(name), self._parent_of(f"{name}/.") as (folder, _):
            found = sorted(os.listdir(folder))  # noqa: PTH208 -- a Path takes no descriptor
        return found  # noqa: RET504 -- likewise

    @contextlib.contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            parts = name.split("/")
            link = any(self.link("/".join(parts[:count])) for count in range(1, len(parts) + 1))
            why = "a symbolic link, which is not followed" if link else error.strerror
            self.warn(f"{name}: not read: {why}")

    @contextlib.contextmanager
    def _open(self, name: str) -> Iterator[BinaryIO]:
        with self._parent_of(name) as (parent, last):
            descriptor = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file")
        with os.fdopen(descriptor, "rb") as file:
            yield file

    @contextlib.contextmanager
    def _parent_of(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield a descriptor of the folder in which ``name`` lies, and the last part of it.

        The folders are opened one from the other: a link that appears meanwhile leads nowhere either.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        parts = [*self.below.parts, *name.split("/")]
        descriptor = os.open(self.path, flags)
        try:
            for part in parts[:-1]:
                inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, parts[-1]
        finally:
            os.close(descriptor)

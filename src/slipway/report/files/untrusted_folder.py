"""Safe reading of an untrusted folder.

Reads never follow symbolic links below the folder, never block, and never exceed a size limit. Unreadable files cause a
warning; missing files do not.
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

MAX_LINE_BYTES = 1 << 16
"""Maximum number of bytes that are read as one line; longer lines are split and are then not valid records."""


class Folder:
    """An untrusted folder, and the warnings from reading it."""

    def __init__(self, path: Path, *, below: str = "") -> None:
        """Prepare to read the folder at the relative path ``below`` in ``path``, which may be a symbolic link."""
        self.path = path
        self.below = PurePosixPath(below)
        self.warnings: list[str] = []

    @property
    def name(self) -> str:
        """The folder's last path component, without resolving links."""
        return self.below.name or Path(os.path.abspath(self.path)).name or "/"  # noqa: PTH100 -- keeps links

    def warn(self, text: str) -> None:
        """Add the warning ``text``, as one line, for the page and for stderr; ignore duplicates."""
        text = one_line(text)
        if text not in self.warnings:
            self.warnings.append(text)

    def has(self, name: str) -> bool:
        """Return whether the path exists, readable or not."""
        try:
            with self._parent_of(name) as (parent, last):
                os.stat(last, dir_fd=parent, follow_symlinks=False)
        except OSError:
            return False
        return True

    def read(self, name: str, *, limit: int = SMALL) -> bytes | None:
        """Return the first ``limit`` bytes of a file; None if it is missing, and with a warning if it is unreadable."""
        content = None
        with self._reported(name), self._open(name) as file:
            content = file.read(limit + 1)
        if content is not None and len(content) > limit:
            self.warn(f"{name}: read only the first {limit} bytes")
        return content if content is None else content[:limit]

    def read_tail(self, name: str, *, limit: int = SMALL) -> bytes | None:
        """Return the last ``limit`` bytes of a file; None in the same cases as ``read``."""
        content = None
        with self._reported(name), self._open(name) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - limit, 0))
            content = file.read(limit)
        return content  # noqa: RET504 -- None after an error, which _reported suppresses

    def text(self, name: str, *, limit: int = SMALL) -> str | None:
        """Return the result of ``read`` as text; replace bytes that are not UTF-8, with a warning."""
        content = self.read(name, limit=limit)
        if content is None:
            return None
        text = content.decode(errors="replace")
        # Truncation at the limit may split the last character; read has already warned about it.
        if "\ufffd" in text[:-1]:
            self.warn(f"{name}: contains bytes that are not UTF-8")
        return text

    def lines(self, name: str, *, limit: int) -> Iterator[bytes]:
        """Yield the lines in the first ``limit`` bytes of a file; split lines longer than ``MAX_LINE_BYTES``."""
        with self._reported(name), self._open(name) as file:
            left = limit
            while line := file.readline(MAX_LINE_BYTES):
                left -= len(line)
                if left < 0:
                    self.warn(f"{name}: read only the first {limit} bytes")
                    return
                yield line

    def modified(self, name: str) -> float | None:
        """Return the modification time of a regular file, in seconds since 1970; None if there is none."""
        with contextlib.suppress(OSError), self._parent_of(name) as (parent, last):
            found = os.stat(last, dir_fd=parent, follow_symlinks=False)
            if stat.S_ISREG(found.st_mode):
                return found.st_mtime
        return None

    def link(self, name: str) -> str:
        """Return the target of a symbolic link, without accessing it; "" if ``name`` is not a link."""
        with contextlib.suppress(OSError), self._parent_of(name) as (parent, last):
            return os.readlink(last, dir_fd=parent)
        return ""

    def names(self, name: str) -> list[str]:
        """Return the names in a folder, sorted; [] if the folder is missing."""
        found: list[str] = []
        with self._reported(name), self._parent_of(f"{name}/.") as (folder, _):
            found = sorted(os.listdir(folder))  # noqa: PTH208 -- a Path takes no descriptor
        return found  # noqa: RET504 -- [] after an error, which _reported suppresses

    @contextlib.contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            parts = name.split("/")
            link = any(self.link("/".join(parts[:count])) for count in range(1, len(parts) + 1))
            why = "symbolic links are not followed" if link else error.strerror
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
        """Yield a descriptor of the parent folder of ``name``, and the last component of ``name``.

        Each folder is opened relative to its parent, so a symbolic link created meanwhile is not followed either.
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

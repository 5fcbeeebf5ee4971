"""Folder of a study or sweep and its JSON file, which lists the runs: only ``jobgen`` writes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from typing import Any, ClassVar, Dict, Generic, Iterator, List, Optional, Protocol, Type, TypeVar

import msgspec

from jobgen.base.errors import JobgenError
from slipway.base.bounded_read import read_head

LOCK = ".lock"
"""Lock file in the same folder, held during submission."""
LIMIT = 1 << 24
"""Maximum bytes read from the JSON file: enough for tens of thousands of runs."""


class SetEntry(Protocol):
    """A run's entry in the JSON file; a frozen msgspec.Struct."""

    @property
    def name(self) -> str:
        """Name of the run, for users."""
        ...

    @property
    def run(self) -> str:
        """Name of the run folder, which is in the same folder as the file."""
        ...

    @property
    def submitted(self) -> Optional[str]:
        """Time of the last submission, ISO 8601; None if never submitted."""
        ...

    @property
    def job(self) -> Optional[str]:
        """Job of the last submission (4711_3 for an array task); None if never submitted."""
        ...


E = TypeVar("E", bound=SetEntry)


class SetFile(Protocol[E]):
    """Content of the JSON file; a frozen msgspec.Struct."""

    @property
    def scheduler(self) -> str:
        """Name of the scheduler that runs the jobs."""
        ...

    @property
    def entries(self) -> List[E]:
        """The runs."""
        ...


F = TypeVar("F", bound=SetFile[Any])
R = TypeVar("R", bound="RunSet[Any, Any]")


class RunSet(Generic[E, F]):
    """A folder of runs with its JSON file."""

    kind: ClassVar[str]
    """Name of the command that writes the file, and of the file without its suffix: "study" or "sweep"."""
    format: ClassVar[Type[Any]]
    """The struct of the file's content."""

    def __init__(self, folder: Path, head: F, *, found: bytes = b"") -> None:
        """Create the record of the runs in ``folder``.

        Args:
            folder: the folder of the runs; it need not exist.
            head: content of the file; its entries are the first ones of this record.
            found: the file's bytes when it was read; empty if it did not exist.
        """
        self.folder, self.head, self.found = folder, head, found
        self.path = folder / f"{self.kind}.json"
        self.entries: Dict[str, E] = {entry.name: entry for entry in head.entries}

    @classmethod
    def is_in(cls, folder: Path) -> bool:
        """Return whether ``folder``, which need not exist, contains such a file.

        Raises:
            JobgenError: if the folder cannot be read.
        """
        try:
            return (folder / f"{cls.kind}.json").is_file()
        except OSError as error:
            raise JobgenError("cannot-read", f"cannot read {folder}: {error.strerror}.") from error

    @classmethod
    def read(cls: Type[R], folder: Path) -> R:
        """Return the record in ``folder``.

        Raises:
            JobgenError: if the file cannot be read, has another version's format, or lists a run outside ``folder``.
        """
        path = folder / f"{cls.kind}.json"
        try:
            found = read_head(path, limit=LIMIT)
            head = msgspec.json.decode(found, type=cls.format)
        except OSError as error:
            raise JobgenError("cannot-read", f"cannot read {path}: {error.strerror}.") from error
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise JobgenError(
                "bad-record",
                f"{path} does not have the format that `jobgen {cls.kind}` of this version writes ({error}).",
            ) from error
        for entry in head.entries:
            if not re.fullmatch(r"[\w][\w.-]*", entry.run, flags=re.ASCII):
                raise JobgenError(
                    "bad-record", f"{path}: the run {entry.run[:60]!r} is not the name of a folder next to this file."
                )
        return cls(folder, head, found=found)

    @classmethod
    def open(cls: Type[R], folder: Path, new: Any) -> R:
        """Return the record in ``folder``, or one with the content ``new`` if no file there is visible.

        Raises:
            JobgenError: if the record cannot be read, or the folder has other content.
        """
        if cls.is_in(folder):
            return cls.read(folder)
        try:
            taken = folder.exists() and (not folder.is_dir() or any(path.name[0] != "." for path in folder.iterdir()))
        except OSError as error:
            raise JobgenError("cannot-read", f"cannot read {folder}: {error.strerror}.") from error
        if taken:
            raise JobgenError("file-exists", f"{folder} exists and has no {cls.kind}.json: choose another --output.")
        return cls(folder, new)

    def content(self) -> F:
        """Return the file's content."""
        content: F = msgspec.structs.replace(self.head, entries=list(self.entries.values()))  # type: ignore[type-var]
        return content

    def run_folder(self, entry: E) -> Path:
        """Return the run folder of an entry."""
        return self.folder / entry.run

    def submitted(self, jobs: Dict[str, str]) -> None:
        """Record the submission of ``jobs``, job numbers by entry name, with the current time, and write the file."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        for name, job in jobs.items():
            self.entries[name] = msgspec.structs.replace(self.entries[name], submitted=now, job=job)  # type: ignore[type-var]
        self.write()

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """Hold the folder's lock and write the file, so that no other command submits its runs at the same time.

        Raises:
            JobgenError: if another command holds the lock or has changed the file, or if it cannot be written.
        """
        lock = self.folder / LOCK
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
        except OSError as error:
            raise JobgenError("cannot-write", f"cannot write {lock}: {error.strerror}.") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise JobgenError(
                    "folder-in-use", f"another command is submitting runs in {self.folder}: wait until it ends."
                ) from error
            except OSError:  # file systems without locks: only the check below protects
                pass
            if self._content_now() != self.found:
                raise JobgenError(
                    "folder-in-use",
                    f"another command has submitted runs in {self.folder} since: run this command again.",
                )
            self.write()
            yield
        finally:
            os.close(descriptor)

    def _content_now(self) -> bytes:
        try:
            return read_head(self.path, limit=LIMIT)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise JobgenError("cannot-read", f"cannot read {self.path}: {error.strerror}.") from error

    def write(self) -> None:
        """Write the file atomically.

        Raises:
            JobgenError: if the file cannot be written.
        """
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self.content()), indent=1) + b"\n")
            os.replace(temporary, self.path)  # noqa: PTH105 -- pathlib has no advantage here
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()  # frees space on a full disk
            raise JobgenError("cannot-write", f"cannot write {self.path}: {error.strerror}.") from error

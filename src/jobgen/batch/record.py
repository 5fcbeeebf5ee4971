"""Folder of a study or sweep and its JSON file, which lists the runs: only ``jobgen`` writes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from pathlib import Path
from typing import ClassVar, Dict, Generic, Iterator, List, Optional, Protocol, Tuple, Type, TypeVar

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
F = TypeVar("F", bound=msgspec.Struct)


class RunSet(Generic[E]):
    """A folder of runs with its JSON file."""

    file: ClassVar[str]
    """Name of the JSON file."""

    def __init__(self, folder: Path, scheduler: str, entries: List[E], *, found: bytes = b"") -> None:
        """Create the record of the runs in ``folder``.

        Args:
            folder: the folder of the runs; it need not exist.
            scheduler: name of the scheduler that runs their jobs.
            entries: the runs.
            found: content of the file when it was read; empty if it did not exist.
        """
        self.folder, self.scheduler, self.found = folder, scheduler, found
        self.entries = {entry.name: entry for entry in entries}

    def content(self) -> msgspec.Struct:
        """Return the file's content as a struct."""
        raise NotImplementedError

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
            return read_head(self.folder / self.file, limit=LIMIT)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise JobgenError("cannot-read", f"cannot read {self.folder / self.file}: {error.strerror}.") from error

    def write(self) -> None:
        """Write the file atomically.

        Raises:
            JobgenError: if the file cannot be written.
        """
        path = self.folder / self.file
        temporary = path.with_name(f".{self.file}.{os.getpid()}")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self.content()), indent=1) + b"\n")
            os.replace(temporary, path)  # noqa: PTH105 -- pathlib has no advantage here
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()  # frees space on a full disk
            raise JobgenError("cannot-write", f"cannot write {path}: {error.strerror}.") from error


def holds(folder: Path, file: str) -> bool:
    """Return whether ``folder`` contains ``file``; False if it is missing or has only hidden files.

    Raises:
        JobgenError: if the folder has other content or cannot be read.
    """
    if has(folder, file):
        return True
    try:
        taken = folder.exists() and (not folder.is_dir() or any(path.name[0] != "." for path in folder.iterdir()))
    except OSError as error:
        raise JobgenError("cannot-read", f"cannot read {folder}: {error.strerror}.") from error
    if taken:
        raise JobgenError("file-exists", f"{folder} exists and has no {file}: choose another --output.")
    return False


def has(folder: Path, file: str) -> bool:
    """Return whether ``folder``, which need not exist, contains ``file``.

    Raises:
        JobgenError: if the folder cannot be read.
    """
    try:
        return (folder / file).is_file()
    except OSError as error:
        raise JobgenError("cannot-read", f"cannot read {folder}: {error.strerror}.") from error


def read(folder: Path, file: str, kind: Type[F], *, command: str) -> Tuple[F, bytes]:
    """Read ``file`` in ``folder``; return its content as ``kind``, a struct, and its bytes.

    ``command``, which writes such files, appears in the error message.

    Raises:
        JobgenError: if the file cannot be read, or has another version's format.
    """
    path = folder / file
    try:
        content = read_head(path, limit=LIMIT)
        return msgspec.json.decode(content, type=kind), content
    except OSError as error:
        raise JobgenError("cannot-read", f"cannot read {path}: {error.strerror}.") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JobgenError(
            "bad-record", f"{path} does not have the format that `{command}` of this version writes ({error})."
        ) from error


def require_runs_inside(path: Path, entries: List[E]) -> None:
    """Raise a JobgenError if an entry of the file ``path`` has a run folder outside the file's folder."""
    for entry in entries:
        if not re.fullmatch(r"[\w][\w.-]*", entry.run, flags=re.ASCII):
            raise JobgenError(
                "bad-record", f"{path}: the run {entry.run[:60]!r} is not the name of a folder next to this file."
            )

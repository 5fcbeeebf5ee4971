"""A folder of runs and the JSON file in it that names them: written by ``jobgen``, read by everybody else."""

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
from slipway.base.bounded_read import read_start

LOCK = ".lock"
"""Held while runs are submitted; in the folder of the file."""
LIMIT = 1 << 24
"""Bytes that are read of such a file: ten thousands of runs."""


class SetEntry(Protocol):
    """A run as it stands in the file; a frozen msgspec.Struct."""

    @property
    def name(self) -> str:
        """Its name, for people."""
        ...

    @property
    def run(self) -> str:
        """Its run folder, in that of the file."""
        ...

    @property
    def submitted(self) -> Optional[str]:
        """When it was submitted last, ISO 8601; None before that."""
        ...

    @property
    def job(self) -> Optional[str]:
        """The job of its last submission, 4711_3 for a task of an array; None before that."""
        ...


E = TypeVar("E", bound=SetEntry)
F = TypeVar("F", bound=msgspec.Struct)


class RunSet(Generic[E]):
    """A folder of runs."""

    file: ClassVar[str]
    """Name of its file."""

    def __init__(self, folder: Path, scheduler: str, entries: List[E], *, found: bytes = b"") -> None:
        """Describe what is in ``folder``, whose jobs are those of ``scheduler``.

        Args:
            folder: of the runs; needs not exist.
            scheduler: by its name.
            entries: the runs.
            found: the file as it was read; empty if there was none.
        """
        self.folder, self.scheduler, self.found = folder, scheduler, found
        self.entries = {entry.name: entry for entry in entries}

    def content(self) -> msgspec.Struct:
        """Return what the file holds."""
        raise NotImplementedError

    def run_folder(self, entry: E) -> Path:
        """Return where the run of an entry is."""
        return self.folder / entry.run

    def submitted(self, jobs: Dict[str, str]) -> None:
        """Note that entries have just been submitted, each by its name and as which job, and write the file."""
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        for name, job in jobs.items():
            self.entries[name] = msgspec.structs.replace(self.entries[name], submitted=now, job=job)  # type: ignore[type-var]
        self.write()

    @contextlib.contextmanager
    def submitting(self) -> Iterator[None]:
        """Write the file, and let no other command submit runs of the folder meanwhile.

        Raises:
            JobgenError: if another one does, or has done so since the file was read, or if it cannot be written.
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
                    "folder-in-use", f"another command submits runs of {self.folder}: wait for its end."
                ) from error
            except OSError:  # a file system may have no locks: then the look below has to do
                pass
            if self._content_now() != self.found:
                raise JobgenError(
                    "folder-in-use",
                    f"another command has submitted runs of {self.folder} meanwhile: run this one again.",
                )
            self.write()
            yield
        finally:
            os.close(descriptor)

    def _content_now(self) -> bytes:
        try:
            return read_start(self.folder / self.file, limit=LIMIT)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise JobgenError("cannot-read", f"cannot read {self.folder / self.file}: {error.strerror}.") from error

    def write(self) -> None:
        """Write the file: the old one, or the new one whole.

        Raises:
            JobgenError: if that is impossible.
        """
        path = self.folder / self.file
        temporary = path.with_name(f".{self.file}.{os.getpid()}")
        try:
            temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self.content()), indent=1) + b"\n")
            os.replace(temporary, path)  # noqa: PTH105 -- pathlib has the same, and no other function here needs it
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()  # where the disk is full, its room is needed
            raise JobgenError("cannot-write", f"cannot write {path}: {error.strerror}.") from error


def holds(folder: Path, file: str) -> bool:
    """Return whether ``folder`` has the ``file`` of a set of runs; False if there is nothing but hidden files.

    Raises:
        JobgenError: if something else is there.
    """
    if has(folder, file):
        return True
    try:
        taken = folder.exists() and (not folder.is_dir() or any(path.name[0] != "." for path in folder.iterdir()))
    except OSError as error:
        raise JobgenError("cannot-read", f"cannot read {folder}: {error.strerror}.") from error
    if taken:
        raise JobgenError("file-exists", f"{folder} is there, and holds no {file}: name another --output.")
    return False


def has(folder: Path, file: str) -> bool:
    """Return whether there is the ``file`` of a set of runs in ``folder``, which needs not exist.

    Raises:
        JobgenError: if the folder may not be read.
    """
    try:
        return (folder / file).is_file()
    except OSError as error:
        raise JobgenError("cannot-read", f"cannot read {folder}: {error.strerror}.") from error


def read(folder: Path, file: str, kind: Type[F], *, command: str) -> Tuple[F, bytes]:
    """Return what the ``file`` in ``folder`` holds, a ``kind`` of struct, and its bytes; ``command`` has written it.

    Raises:
        JobgenError: if it cannot be read, or is another version's.
    """
    path = folder / file
    try:
        content = read_start(path, limit=LIMIT)
        return msgspec.json.decode(content, type=kind), content
    except OSError as error:
        raise JobgenError("cannot-read", f"cannot read {path}: {error.strerror}.") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise JobgenError("bad-record", f"{path} is not what `{command}` of this version writes ({error}).") from error


def refuse_outside(path: Path, entries: List[E]) -> None:
    """Raise a JobgenError if a run that the file ``path`` names is outside of its folder."""
    for entry in entries:
        if not re.fullmatch(r"[\w][\w.-]*", entry.run, flags=re.ASCII):
            raise JobgenError("bad-record", f"{path}: the run {entry.run[:60]!r} is no folder beside it.")

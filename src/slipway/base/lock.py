"""One run, one folder: the lock that refuses a second run in the same folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from slipway.base.contract import HEARTBEAT, LOCK, STALE
from slipway.base.errors import FolderInUseError, LostFolderError, NotAFileError
from slipway.base.reading import SMALL, read_start

POLL = 1.0
"""Seconds between two looks at the lock of an owner who may live elsewhere."""
HALF_WRITTEN = 5.0
"""Seconds for which a lock may name no owner: between two lines of its writer."""
START = b'{"host": '
"""With which each lock begins."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Lock:
    """The file ``lock`` in a run folder, held from ``acquire`` to ``release``."""

    def __init__(self, folder: Path, *, job_id: str, attempt: int) -> None:
        """Prepare to lock ``folder`` as attempt number ``attempt`` of the scheduler's job ``job_id`` ("" for none)."""
        self._path = folder / LOCK
        self._owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pid_namespace": _pid_namespace(),
            "boot_id": BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else "",
            "pid_start": _start_time(os.getpid()),
            "since": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            "job_id": job_id,
            "attempt": attempt,
        }
        self._released = threading.Event()

    def acquire(self) -> None:
        """Take the lock, from a dead owner too.

        Whether an owner on another node lives can only be seen by its heartbeat: this waits for one, or until the owner
        counts as dead, STALE seconds at most.

        Raises:
            FolderInUseError: if its owner lives.
            NotAFileError: if a file of the user's has the name of the lock.
        """
        _require_ours(self._path)
        while not self._create(self._path):
            owner = self._find_stale_owner(self._path, patience=STALE)
            if owner is not None and self._take_over(owner):
                break
        threading.Thread(target=self._beat, name="lock heartbeat", daemon=True).start()

    def require_free(self) -> None:
        """Make sure that ``acquire`` would not be refused, as far as two heartbeats tell.

        Raises:
            FolderInUseError: if its owner lives.
            NotAFileError: if a file of the user's has the name of the lock.
        """
        _require_ours(self._path)
        self._find_stale_owner(self._path, patience=2 * HEARTBEAT)

    def check(self) -> None:
        """Make sure that the lock is still ours.

        Raises:
            LostFolderError: if another run has taken it over (this one had stopped to give signs of life).
        """
        try:
            owner = self._read()
        except OSError:  # a shared disk that stumbles says nothing about the owner
            return
        if owner != self._owner:
            raise LostFolderError(lock=self._path)

    def release(self) -> None:
        """Give the lock back, if it is still ours."""
        self._released.set()
        with contextlib.suppress(OSError):
            if self._read() == self._owner:
                self._path.unlink()

    def _create(self, path: Path) -> bool:
        try:
            file = path.open("x", encoding="utf-8")
        except FileExistsError:
            return False
        try:
            with file:
                json.dump(self._owner, file)
        except OSError:  # a full disk
            path.unlink(missing_ok=True)
            raise
        return True

    def _read(self) -> dict[str, Any] | None:
        return _read(self._path)

    def _find_stale_owner(self, path: Path, *, patience: float) -> dict[str, Any] | None:
        """Return the owner that left the lock ``path`` behind; None if there is no lock (any more).

        Args:
            path: of the lock.
            patience: seconds to wait for a heartbeat of an owner who may live elsewhere.

        Raises:
            FolderInUseError: if its owner lives.
        """
        first: tuple[dict[str, Any], float] | None = None
        deadline = 0.0
        while (found := _look(path)) is not None:
            owner, beat = found
            if self._is_dead(owner) or _age(path) > STALE:
                return owner
            if first is None or first[0] != owner:
                limit = patience if owner else min(patience, HALF_WRITTEN)
                first, deadline = found, time.monotonic() + limit
            if self._lives_here(owner) or beat != first[1]:
                raise _in_use(path, owner)
            if time.monotonic() > deadline:
                return owner
            time.sleep(POLL)
        return None

    def _take_over(self, dead: dict[str, Any]) -> bool:
        """Put our lock in the place of the ``dead`` owner's; False if somebody else has done so meanwhile.

        Only who holds the claim, a file named for the dead owner, may replace that owner's lock, and once the lock is
        replaced it is of another owner. So of many that try at once one succeeds.
        """
        digest = hashlib.sha256(json.dumps(dead, sort_keys=True).encode()).hexdigest()[:16]
        claim = self._path.with_name(f".lock.after.{digest}")
        if not self._create(claim):
            if self._find_stale_owner(claim, patience=STALE) is not None:  # killed on these very lines
                claim.unlink(missing_ok=True)
        elif self._read() == dead:
            with contextlib.suppress(FileNotFoundError):  # taken for one of the dead, as it took so long
                claim.rename(self._path)
        else:
            claim.unlink(missing_ok=True)
        return self._read() == self._owner

    def _is_dead(self, owner: dict[str, Any]) -> bool:
        """Return whether ``owner`` is known to be dead: an earlier attempt of this job, or a process that is gone."""
        mine = self._owner
        if mine["job_id"] and owner.get("job_id") == mine["job_id"] and owner.get("attempt", 0) < mine["attempt"]:
            return True
        return self._is_here(owner) and not self._lives_here(owner)

    def _lives_here(self, owner: dict[str, Any]) -> bool:
        """Return whether ``owner`` is a process that can be seen from here, and lives."""
        return self._is_here(owner) and _start_time(owner.get("pid", 0)) == owner.get("pid_start")

    def _is_here(self, owner: dict[str, Any]) -> bool:
        """Return whether ``owner`` has its number from this kernel: by the boot, as cloned nodes share host names."""
        return bool(owner.get("boot_id")) and all(
            owner.get(key) == self._owner[key] for key in ("boot_id", "pid_namespace")
        )

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT):
            with contextlib.suppress(OSError):  # a full or slow disk must not end the run; check() tells of a loss
                if self._read() == self._owner:
                    os.utime(self._path)


def _in_use(path: Path, owner: dict[str, Any]) -> FolderInUseError:
    return FolderInUseError(
        folder=path.parent,
        pid=owner.get("pid"),
        host=owner.get("host"),
        job=owner.get("job_id") or "none",
        since=owner.get("since"),
    )


def _look(path: Path) -> tuple[dict[str, Any], float] | None:
    """Return the owner that a lock names, and the time of its last heartbeat; None if there is no lock.

    Opened first: so NFS asks the server for the time, too.
    """
    try:
        return (_read(path) or {}), path.stat().st_mtime
    except FileNotFoundError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    """Return the owner that a lock names, {} where it was only half written; None if there is no lock."""
    try:
        return dict(json.loads(read_start(path, limit=SMALL)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError):
        return {}


def _require_ours(path: Path) -> None:
    """Raise a NotAFileError if ``path`` is a file that no run has written, also not half: it would be replaced."""
    with contextlib.suppress(FileNotFoundError):
        if not START.startswith(read_start(path, limit=len(START)).rstrip(b"\0")):
            raise NotAFileError(path=path, kind="no lock of a run")


def _age(path: Path) -> float:
    """Return the seconds since the last sign of life, by the clock of the file server: hosts' clocks differ."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".lock.") as now, contextlib.suppress(OSError):
        return Path(now.name).stat().st_mtime - path.stat().st_mtime
    return 0.0


def _start_time(pid: int) -> str:
    """Return when process ``pid`` started, in clock ticks since boot (field 22 of proc(5)'s stat); "" if it is dead.

    A zombie counts as dead: if the init process of a container reaps no orphans, killed ranks stay zombies.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = status.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def _pid_namespace() -> int:
    """Return the inode of this process's PID namespace: in another one the same number is another process."""
    namespace = Path("/proc/self/ns/pid")
    return namespace.stat().st_ino if namespace.exists() else 0

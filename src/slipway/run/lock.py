"""Advisory lock that keeps a second run out of a run folder."""

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

from slipway.base.bounded_read import SMALL, read_head
from slipway.base.contract import HEARTBEAT, LOCK, STALE
from slipway.base.errors import FolderInUseError, LostFolderError, NotAFileError

POLL = 1.0
"""Seconds between two checks of the lock of an owner that may live on another host."""
HALF_WRITTEN = 5.0
"""Seconds for which a lock may name no owner, because its writer has created the file but not yet filled it."""
START = b'{"host": '
"""First bytes of each lock file."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Lock:
    """The file ``lock`` in a run folder, held from ``acquire`` to ``release``."""

    def __init__(self, folder: Path, *, job_id: str, attempt: int) -> None:
        """Prepare to lock ``folder`` for ``attempt`` of the scheduler's job ``job_id`` ("" without a job)."""
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
        """Acquire the lock, also from a dead owner.

        Only the heartbeat shows whether an owner on another node is alive. This method waits for a heartbeat, or until
        the owner counts as dead, for at most STALE seconds.

        Raises:
            FolderInUseError: if the owner is alive.
            NotAFileError: if a user's file has the name of the lock.
        """
        _require_lock_file(self._path)
        while not self._create(self._path):
            owner = self._find_stale_owner(self._path, patience=STALE)
            if owner is not None and self._take_over(owner):
                break
        threading.Thread(target=self._beat, name="lock heartbeat", daemon=True).start()

    def require_free(self) -> None:
        """Check that the folder is free, without acquiring the lock; wait for at most two heartbeats.

        Raises:
            FolderInUseError: if the owner is alive.
            NotAFileError: if a user's file has the name of the lock.
        """
        _require_lock_file(self._path)
        self._find_stale_owner(self._path, patience=2 * HEARTBEAT)

    def check(self) -> None:
        """Check that this run still holds the lock.

        Raises:
            LostFolderError: if another run has taken it over because this run's heartbeats had stopped.
        """
        try:
            owner = _read(self._path)
        except OSError:  # a temporary failure of a shared disk does not show that the lock is lost
            return
        if owner != self._owner:
            raise LostFolderError(lock=self._path)

    def release(self) -> None:
        """Release the lock, if this run still holds it."""
        self._released.set()
        with contextlib.suppress(OSError):
            if _read(self._path) == self._owner:
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

    def _find_stale_owner(self, path: Path, *, patience: float) -> dict[str, Any] | None:
        """Return the dead owner of the lock file ``path``, or None if the file does not exist (any more).

        Args:
            path: the lock file.
            patience: seconds to wait for a heartbeat of an owner that may live on another host.

        Raises:
            FolderInUseError: if the owner is alive.
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
            if self._is_alive(owner) or beat != first[1]:
                raise _in_use(path, owner)
            if time.monotonic() > deadline:
                return owner
            time.sleep(POLL)
        return None

    def _take_over(self, dead: dict[str, Any]) -> bool:
        """Replace the ``dead`` owner's lock by this run's; return False if another process has already replaced it.

        Only the process that holds the claim, a file named for the dead owner, may replace that owner's lock. After the
        replacement, the lock has another owner. If several processes try at once, exactly one therefore succeeds.
        """
        digest = hashlib.sha256(json.dumps(dead, sort_keys=True).encode()).hexdigest()[:16]
        claim = self._path.with_name(f".lock.after.{digest}")
        if not self._create(claim):
            if self._find_stale_owner(claim, patience=STALE) is not None:  # its process was killed in this function
                claim.unlink(missing_ok=True)
        elif _read(self._path) == dead:
            with contextlib.suppress(FileNotFoundError):  # another process took this slow one for dead
                claim.rename(self._path)
        else:
            claim.unlink(missing_ok=True)
        return _read(self._path) == self._owner

    def _is_dead(self, owner: dict[str, Any]) -> bool:
        """Return whether ``owner`` is known to be dead: an earlier attempt of this job, or a process that has ended."""
        mine = self._owner
        if mine["job_id"] and owner.get("job_id") == mine["job_id"] and owner.get("attempt", 0) < mine["attempt"]:
            return True
        return self._is_here(owner) and not self._is_alive(owner)

    def _is_alive(self, owner: dict[str, Any]) -> bool:
        """Return whether ``owner`` is a live process in this process's PID namespace."""
        return self._is_here(owner) and _start_time(owner.get("pid", 0)) == owner.get("pid_start")

    def _is_here(self, owner: dict[str, Any]) -> bool:
        """Return whether ``owner`` has its PID from this kernel: compare boot IDs, as cloned nodes share host names."""
        return bool(owner.get("boot_id")) and all(
            owner.get(key) == self._owner[key] for key in ("boot_id", "pid_namespace")
        )

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT):
            with contextlib.suppress(OSError):  # a full or slow disk must not end the run; check() reports a loss
                if _read(self._path) == self._owner:
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
    """Return the owner in a lock file and the time of the last heartbeat, or None if the file does not exist.

    The file is opened before its time is read, so that NFS requests the time from the server.
    """
    try:
        return (_read(path) or {}), path.stat().st_mtime
    except FileNotFoundError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    """Return the owner in a lock file, {} if the file is incomplete, or None if it does not exist."""
    try:
        return dict(json.loads(read_head(path, limit=SMALL)))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, RecursionError):
        return {}


def _require_lock_file(path: Path) -> None:
    """Raise NotAFileError if ``path`` is neither a lock nor an incomplete one: ``acquire`` would replace it."""
    with contextlib.suppress(FileNotFoundError):
        if not START.startswith(read_head(path, limit=len(START)).rstrip(b"\0")):
            raise NotAFileError(path=path, kind="not the lock of a run")


def _age(path: Path) -> float:
    """Return the seconds since the last heartbeat, by the file server's clock, because hosts' clocks differ."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".lock.") as now, contextlib.suppress(OSError):
        return Path(now.name).stat().st_mtime - path.stat().st_mtime
    return 0.0


def _start_time(pid: int) -> str:
    """Return the start time of process ``pid`` in clock ticks since boot (field 22 in proc(5)'s stat); "" if dead.

    A zombie counts as dead: if a container's init process does not reap orphans, killed ranks remain zombies.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
    state, *fields = status.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]


def _pid_namespace() -> int:
    """Return the inode of this process's PID namespace: the same PID in another namespace is another process."""
    namespace = Path("/proc/self/ns/pid")
    return namespace.stat().st_ino if namespace.exists() else 0

"""An attempt at a run: ownership of the run folder, the attempt's records, and its end. Only rank 0 uses it.

An attempt has four phases. ``acquire`` locks the folder and returns an ``Ownership``. The program checks that it may
continue the run in the folder. ``Ownership.begin`` records the ``Attempt``. ``conclude`` or ``fail`` records how the
attempt ended. ``open_folder`` acquires the folder on entry and records a failure on exit.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from slipway.base.contract import CONFIG, PROVENANCE, STATUS, STOP
from slipway.base.environment import Environment
from slipway.base.errors import TRANSIENT, FolderNotWritableError, SlipwayError, is_retryable, reason_of
from slipway.base.files import write_atomically, write_json
from slipway.base.slugs import EXIT_FAILED
from slipway.base.stop import Reason, read_stop_file
from slipway.dist.collectives import RootOnly
from slipway.dist.communicator import Communicator
from slipway.run.job import JobFolder
from slipway.run.lock import Lock
from slipway.run.run_folder import RunFolder
from slipway.run.status import Status, read_status, write_status


class Attempt:
    """One attempt at the run in a run folder, from its beginning to its end."""

    def __init__(self, folder: RunFolder, lock: Lock, environment: Environment, *, step: int) -> None:
        """Begin at ``step`` in ``folder``, whose ``lock`` this process holds; create logs/N with an unused number N."""
        self.folder = folder
        self._lock = lock
        self._job = JobFolder(folder.path, environment)
        self.quota = environment.quota
        """Remaining quota in the folder, as quota_left.sh prints it; None if it was not queried."""
        self.number = environment.attempt
        if self.number:
            self._own.mkdir(mode=0o755, exist_ok=True)  # the job script has created it
        else:
            self._reserve_number()
        self.status = Status(attempt=self.number, state="running", start_step=step, step=step)
        """The attempt's progress, or how it ended."""
        self._next_look = 0.0
        self._asked = Reason.NONE

    def check(self) -> None:
        """Raise an error if this process no longer holds the folder's lock; see Lock.check."""
        self._lock.check()

    def stop_request(self, *, at_once: bool = False) -> Reason:
        """Return the reason to stop that a STOP file in the run folder or the job's folder requests of this attempt.

        The time limit of an older attempt does not count.

        Args:
            at_once: whether to read the files now; otherwise this reads them at most once a second.
        """
        if at_once or time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + 1
            for folder in {self.folder.path, self._job.folder}:
                reason, meant = read_stop_file(folder)
                number = meant.rpartition("/")[2]
                older = number.isdecimal() and int(number) < self.number
                if not (reason == Reason.TIME_LIMIT and older):
                    self._asked = max(self._asked, reason)
        return self._asked

    def conclude(self, reason: Reason, *, step: int) -> Status:
        """Record that the attempt ended normally at ``step``, done or stopped for ``reason``, and unlock the folder.

        Raises:
            LostFolderError: if this process no longer holds the folder's lock; nothing is recorded then.
        """
        self.check()
        self.record(self.status.ended(reason, step=step))
        self._job.write_verdict(self.status)
        self._lock.release()
        return self.status

    def record(self, status: Status) -> None:
        """Write ``status`` to the run folder and to this attempt's folder."""
        self.status = status
        for folder in (self.folder.path, self._own):
            write_status(folder, status)

    def record_provenance(self, config: str | None, provenance: Mapping[str, object]) -> None:
        """Write configuration and provenance to the run folder and to this attempt's folder."""
        for folder in (self._own, self.folder.path):
            if config is not None:
                write_atomically(folder / CONFIG, config)
            write_json(folder / PROVENANCE, provenance)

    @property
    def _own(self) -> Path:
        """The attempt's own folder, logs/N."""
        return self.folder.logs / str(self.number)

    def _reserve_number(self) -> None:
        """Reserve the next attempt number as a job script does: by creating its folder, which must not exist yet."""
        self.number = self.folder.last_attempt
        while True:
            self.number += 1
            with contextlib.suppress(FileExistsError):
                self._own.mkdir(mode=0o755)
                return


class Ownership:
    """A run folder that this process has locked."""

    def __init__(
        self, folder: RunFolder, lock: Lock, environment: Environment, stop_before: tuple[int, int] | None
    ) -> None:
        """Own ``folder``, whose ``lock`` this process holds; ``stop_before`` identifies the STOP found at first."""
        self.folder = folder
        self.attempt: Attempt | None = None
        """The attempt that has begun; None before that."""
        self._lock = lock
        self._environment = environment
        self._job = JobFolder(folder.path, environment)
        self.before = read_status(folder.path)
        """Status of the last attempt; None if the folder holds none."""
        self._job.withdraw_verdict(self.before)
        self._stop_before = stop_before
        self._stop_was_obeyed = stop_before is not None and stop_before[1] <= _modified(folder.path / STATUS)

    def begin(self, *, config: str | None = None, provenance: Mapping[str, object], step: int) -> Attempt:
        """Begin an attempt, record it in the run folder and permanently in logs/N, and return it.

        Call this after the program has checked that it may continue the run. Until then these records stay unchanged.

        Args:
            config: the text of config.toml; None if a script has no configuration.
            provenance: entries of run.json, in addition to the environment variables.
            step: optimizer steps done before.

        Raises:
            LostFolderError: if this process no longer holds the folder's lock.
            FolderNotWritableError: if this user may not write to the folder.
        """
        self._lock.check()
        with writing(self.folder.path):
            attempt = self.attempt = Attempt(self.folder, self._lock, self._environment, step=step)
            record = {**provenance, "attempt": attempt.number, "variables": self._environment.recorded}
            self._job.begin()
            attempt.record_provenance(config, record)
            attempt.record(attempt.status)
            self._clear_stop_request(attempt.number)
        return attempt

    def fail(self, error: BaseException) -> None:
        """Record that ``error`` ended the attempt, and unlock the folder; record nothing if the lock was lost.

        This writes a verdict only if the error is not retryable. If no attempt has begun, it writes the verdict only if
        the job script gave the attempt's number, and it changes nothing else in a folder that holds a run.
        """
        with contextlib.suppress(SlipwayError, OSError):  # a full disk must not hide the original error
            self._lock.check()
            if self.attempt:
                status = self.attempt.status
            else:
                status = Status(attempt=self._environment.attempt or 1 + self.folder.last_attempt, state="running")
            status = status.failed(reason_of(error), step=self.folder.last_step)
            if not is_retryable(error) and (self.attempt or self._environment.attempt):
                with contextlib.suppress(OSError):
                    self._job.write_verdict(status)
            if self.attempt:
                self.attempt.record(status)
            elif not self.folder.is_run_folder:
                write_status(self.folder.path, status)
        self.release()

    def require_concluded(self) -> None:
        """Raise a RuntimeError if an attempt has begun but was not concluded."""
        if self.attempt and self.attempt.status.state == "running":
            raise RuntimeError("the attempt ended without a call of conclude")

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def _clear_stop_request(self, number: int) -> None:
        """Remove a STOP file that does not apply to this attempt; any other one stays and stops the attempt.

        A STOP does not apply if it is for the time limit of another attempt. It does not apply either if it existed
        when this attempt began and the run was done, or the last attempt stopped after the STOP was written.
        """
        before, stop = self.before, self.folder.path / STOP
        ended = before is not None and (before.state == "done" or (before.state == "stopped" and self._stop_was_obeyed))
        reason, meant = read_stop_file(self.folder.path)
        this = f"{self._environment.job_id}/{number}"
        if (ended and _identity(stop) == self._stop_before) or (reason == Reason.TIME_LIMIT and meant != this):
            stop.unlink(missing_ok=True)


def acquire(folder: RunFolder, environment: Environment) -> Ownership:
    """Create ``folder`` if it is missing, and lock it.

    A run folder created here is private (mode 0700). The folders in it follow the umask, but other users cannot write
    to them.

    Raises:
        RunError: if the folder cannot be written, or another process uses it.
    """
    lock = Lock(folder.path, job_id=environment.job_id, attempt=environment.attempt)
    stop_before = _identity(folder.path / STOP)
    try:
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire()
        folder.require_files()
        for path in (folder.figures, folder.logs, folder.checkpoints):
            path.mkdir(mode=0o755, exist_ok=True)
        return Ownership(folder, lock, environment, stop_before)
    except OSError as error:
        lock.release()
        raise cannot_write(folder.path, error) from error
    except BaseException:
        lock.release()
        raise


@contextlib.contextmanager
def open_folder(
    folder: RunFolder,
    environment: Environment,
    comm: Communicator,
    *,
    may_continue: bool,
) -> Iterator[RootOnly[Ownership]]:
    """Acquire ``folder`` on rank 0, and record an error that ends the body; all ranks must call this.

    Args:
        folder: the run folder.
        environment: this process's environment.
        comm: this rank's communicator.
        may_continue: whether to continue a run that the folder holds.

    Raises:
        RunError: on every rank, if the folder cannot be acquired, or holds a run and ``may_continue`` is false.
        RuntimeError: if an attempt has begun but was not concluded.
    """
    try:
        ownership = RootOnly(comm, lambda: acquire(folder, environment))
    except BaseException as error:
        if comm.world.is_root and not is_retryable(error):
            folder.refuse(error, environment)
        raise
    owned = ownership.on_root
    try:
        if not may_continue:
            ownership.run(lambda _: folder.require_no_run())
        yield ownership
        if owned:
            owned.require_concluded()
    except BaseException as error:
        if owned:
            owned.fail(error)
        raise
    finally:
        if owned:
            owned.release()


@contextlib.contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise a FolderNotWritableError if the body lacks permission to write to the run folder ``folder``."""
    try:
        yield
    except PermissionError as error:
        raise cannot_write(folder, error) from error


def cannot_write(folder: Path, error: OSError) -> FolderNotWritableError:
    """Return a FolderNotWritableError for ``error``; it is retryable if the error number is transient."""
    path = error.filename2 or error.filename
    within = f"{path}: " if path and str(path) != str(folder) else ""
    failure = FolderNotWritableError(folder=folder, reason=f"{within}{error.strerror}")
    if error.errno in TRANSIENT:
        failure.retryable, failure.exit_code = True, EXIT_FAILED
    return failure


def _modified(path: Path) -> int:
    """Return a file's modification time, in nanoseconds of the file server's clock; 0 if there is no file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _identity(path: Path) -> tuple[int, int] | None:
    """Return inode and modification time, which identify a file among later ones of its name; None without a file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns

"""An attempt at a run: who may write the run folder, from when on, and how it ends. Rank 0 alone makes one.

It goes through four phases. ``acquire`` takes the lock of the folder, and returns an ``Ownership``; the program
validates that it may continue what is there; ``Ownership.begin`` records the ``Attempt``; ``conclude``, or ``fail``,
says how it ended. ``open_folder`` acquires the folder on entry, and records a failure on exit.
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
from slipway.base.lock import Lock
from slipway.base.slugs import EXIT_FAILED
from slipway.base.status import Status, read_status, write_status
from slipway.base.stop import Reason, read_stop_file
from slipway.dist.collectives import RootOnly
from slipway.dist.communicator import Communicator
from slipway.run.job import Job
from slipway.run.run_folder import RunFolder


class Attempt:
    """One attempt at the run in a folder, from its beginning to its end."""

    def __init__(self, folder: RunFolder, lock: Lock, environment: Environment, *, step: int) -> None:
        """Begin in ``folder``, whose ``lock`` is ours, at ``step``; makes logs/N for it, with a number nobody had."""
        self.folder = folder
        self._lock = lock
        self._job = Job(folder.path, environment)
        self.quota = environment.quota
        """What quotas leave in the folder; None if nobody has asked."""
        self.number = environment.attempt
        if self.number:
            self._own.mkdir(mode=0o755, exist_ok=True)  # the job script has made it
        else:
            self._reserve_number()
        self.status = Status(attempt=self.number, state="running", start_step=step, step=step)
        """How far it is, or how it ended."""
        self._next_look = 0.0
        self._asked = Reason.NONE

    def check(self) -> None:
        """Make sure that the folder is still ours; see Lock.check."""
        self._lock.check()

    def stop_request(self, *, at_once: bool = False) -> Reason:
        """Return what a file STOP has asked of this attempt, in its folder or its job's.

        A time limit of an older attempt does not count.

        Args:
            at_once: whether to look in any case, and not at most once a second.
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
        """Record that the attempt ended in good order at ``step``, done or stopped for ``reason``; free the folder.

        Raises:
            LostFolderError: if the folder is no longer ours; nothing is recorded then.
        """
        self.check()
        self.record(self.status.ended(reason, step=step))
        self._job.write_verdict(self.status)
        self._lock.release()
        return self.status

    def record(self, status: Status) -> None:
        """Write ``status`` into the run folder, and into the folder of this attempt."""
        self.status = status
        for folder in (self.folder.path, self._own):
            write_status(folder, status)

    def record_provenance(self, config: str | None, provenance: Mapping[str, object]) -> None:
        """Write configuration and provenance into the run folder, and into the folder of this attempt."""
        for folder in (self._own, self.folder.path):
            if config is not None:
                write_atomically(folder / CONFIG, config)
            write_json(folder / PROVENANCE, provenance)

    @property
    def _own(self) -> Path:
        """The folder of this attempt alone."""
        return self.folder.logs / str(self.number)

    def _reserve_number(self) -> None:
        """Take the next number, as a job script does: by making a folder that was not there."""
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
        """Own ``folder`` by ``lock``, which is held; ``stop_before`` tells which STOP lay there at first."""
        self.folder = folder
        self.attempt: Attempt | None = None
        """The one that has begun, if any."""
        self._lock = lock
        self._environment = environment
        self._job = Job(folder.path, environment)
        self.before = read_status(folder.path)
        """How the last attempt had ended; None if nothing says so."""
        self._job.withdraw_verdict(self.before)
        self._stop_before = stop_before
        self._stop_was_seen = stop_before is not None and stop_before[1] <= _modified(folder.path / STATUS)

    def begin(self, *, config: str | None = None, provenance: Mapping[str, object], step: int) -> Attempt:
        """Record what runs here from now on, in the run folder and, for good, in logs/N; return the attempt.

        To be called once it is clear that this process may continue the run: until then nothing of that changes.

        Args:
            config: the experiment, as the text of config.toml; None where a script keeps none.
            provenance: for run.json, besides the variables of the environment.
            step: optimiser steps done before.

        Raises:
            LostFolderError: if the folder is no longer ours.
            FolderNotWritableError: if this user may not write in it.
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
        """Record that ``error`` ended what was done here, and free the folder; leave it alone if it is another run's.

        There is a verdict only where trying again unchanged cannot help. Before an attempt has begun it is refused:
        there is a verdict if its number is the job script's, and nothing else changes where the folder holds a run.
        """
        with contextlib.suppress(SlipwayError, OSError):  # a full disk must not hide what went wrong
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
            elif not self.folder.holds_run:
                write_status(self.folder.path, status)
        self.release()

    def require_concluded(self) -> None:
        """Raise a RuntimeError if an attempt has begun and not been concluded."""
        if self.attempt and self.attempt.status.state == "running":
            raise RuntimeError("the attempt has ended without being concluded")

    def release(self) -> None:
        """Free the folder."""
        self._lock.release()

    def _clear_stop_request(self, number: int) -> None:
        """Remove a STOP that does not mean this attempt; any other stays, and stops it.

        That is one for the time limit of another attempt; and one that lay there when this attempt began, where the
        run was done, or the last attempt had stopped after it was written.
        """
        before, stop = self.before, self.folder.path / STOP
        ended = before is not None and (before.state == "done" or (before.state == "stopped" and self._stop_was_seen))
        reason, meant = read_stop_file(self.folder.path)
        this = f"{self._environment.job_id}/{number}"
        if (ended and _identity(stop) == self._stop_before) or (reason == Reason.TIME_LIMIT and meant != this):
            stop.unlink(missing_ok=True)


def acquire(folder: RunFolder, environment: Environment) -> Ownership:
    """Create ``folder`` and lock it.

    Only the run folder itself is private, and only where it is made here: what is below it follows the umask, but
    nobody else may write a folder.

    Raises:
        RunError: if the folder cannot be written, or another run is in it.
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
    """Acquire ``folder`` on rank 0, and record an error that ends what is done within; all ranks must call this.

    Args:
        folder: of the run.
        environment: of this process.
        comm: of this rank.
        may_continue: whether to go on with a run that the folder holds.

    Raises:
        RunError: on every rank, if the folder cannot be had, or holds a run that is not to be continued.
        RuntimeError: if an attempt has begun, and not been concluded.
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
    """Raise a FolderNotWritableError if permissions keep the body from writing in the run folder ``folder``."""
    try:
        yield
    except PermissionError as error:
        raise cannot_write(folder, error) from error


def cannot_write(folder: Path, error: OSError) -> FolderNotWritableError:
    """Return what to raise where ``error`` says that ``folder`` cannot be written; trying again may help, or not."""
    path = error.filename2 or error.filename
    within = f"{path}: " if path and str(path) != str(folder) else ""
    failure = FolderNotWritableError(folder=folder, reason=f"{within}{error.strerror}")
    if error.errno in TRANSIENT:
        failure.retryable, failure.exit_code = True, EXIT_FAILED
    return failure


def _modified(path: Path) -> int:
    """Return when a file was changed, in nanoseconds by the clock of its file server; 0 if there is none."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells the file that is there from a later one of the same name; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns

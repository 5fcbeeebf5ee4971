"""An attempt at a run: who may write the run folder, from when on, and how it ends. Rank 0 alone makes one.

It goes through four phases. ``acquire`` takes the lock; then the program validates that it may continue what is there;
``begin`` records it; ``conclude``, or ``fail``, says how it ended. ``open_attempt`` sees to the first and the last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from slipway.communicator import Communicator
from slipway.communicator.collectives import RootOnly
from slipway.environment import Environment
from slipway.errors import FolderNotWritableError, SlipwayError, is_retryable, one_line
from slipway.files import write_atomically, write_json
from slipway.layout import CONFIG, PROVENANCE, STOP
from slipway.lock import Lock
from slipway.runfolder import RunFolder
from slipway.status import Status, read_status, write_status, write_verdict
from slipway.stop import Reason, read_stop_file


class Attempt:
    """One attempt at the run in a folder, which is locked until it concludes, fails, or is released."""

    def __init__(
        self, folder: RunFolder, lock: Lock, environment: Environment, stop_before: tuple[int, int] | None
    ) -> None:
        """Continue what ``folder`` holds; its ``lock`` is ours, and ``stop_before`` tells which STOP lay there."""
        self.folder = folder
        self.number = environment.attempt or 1 + folder.last_attempt
        self._environment = environment
        self._lock = lock
        self._before = read_status(folder.path)
        self._stop_before = stop_before
        self._status = Status(attempt=self.number, state="running")
        self._begun = False
        self._next_look = 0.0

    def begin(self, *, config: str, provenance: Mapping[str, object], step: int) -> None:
        """Record what runs here from now on, in the run folder and, for good, in logs/N of this attempt.

        To be called once it is clear that this attempt may continue the run: until then nothing of that changes.

        Args:
            config: the experiment, as the text of config.toml.
            provenance: for run.json, besides the variables of the environment.
            step: optimiser steps done before.
        """
        self._begun = True
        self._status = dataclasses.replace(self._status, start_step=step, step=step)
        record = {**provenance, "attempt": self.number, "variables": self._environment.recorded}
        self._own.mkdir(exist_ok=True)
        for folder in (self._own, self.folder.path):
            write_atomically(folder / CONFIG, config)
            write_json(folder / PROVENANCE, record)
        write_status(self.folder.path, self._status)
        self._clear_stop_request()

    def check(self) -> None:
        """Make sure that the folder is still ours; see Lock.check."""
        self._lock.check()

    def stop_request(self) -> Reason:
        """Return what the file STOP asks of this attempt.

        It looks at most once a second and says nothing in between. A time limit of an older attempt does not count.
        """
        if time.monotonic() < self._next_look:
            return Reason.NONE
        self._next_look = time.monotonic() + 1
        reason, meant = read_stop_file(self.folder.path)
        number = meant.rpartition("/")[2]
        older = number.isdecimal() and int(number) < self.number
        return Reason.NONE if reason == Reason.TIME_LIMIT and older else reason

    def conclude(self, reason: Reason, *, step: int) -> Status:
        """Record that the attempt ended in good order at ``step``, done or stopped for ``reason``; free the folder."""
        status = self._status.ended(reason, step=step)
        self._record(status)
        write_verdict(self.folder.path, status)
        self.release()
        return status

    def fail(self, error: BaseException, why: str) -> None:
        """Record that the attempt ended in ``error``, and free the folder; leave it alone if it is another run's.

        There is a verdict only where trying again unchanged cannot help. An attempt that had not begun is refused: it
        leaves one if its number is the job script's, and nothing else where the folder holds a run.

        Args:
            error: what ended it.
            why: the same as text, for people; of its first line, at most.
        """
        why = one_line(why) or type(error).__name__
        with contextlib.suppress(SlipwayError, OSError):  # a full disk must not hide what went wrong
            self.check()
            status = self._status.failed(why, step=self.folder.last_step)
            if not is_retryable(error) and (self._begun or self._environment.attempt):
                with contextlib.suppress(OSError):
                    write_verdict(self.folder.path, status)
            if self._begun or not self.folder.holds_run:
                self._record(status)
        self.release()

    def release(self) -> None:
        """Free the folder."""
        self._lock.release()

    @property
    def _own(self) -> Path:
        """The folder of this attempt alone."""
        return self.folder.logs / str(self.number)

    def _record(self, status: Status) -> None:
        write_status(self.folder.path, status)
        if self._begun:
            write_status(self._own, status)

    def _clear_stop_request(self) -> None:
        """Remove a STOP that does not mean this attempt; any other stays, and stops it.

        That is one for the time limit of another attempt; and one that lay there when this attempt began, where the
        last one had ended on it or the run was done.
        """
        before, stop = self._before, self.folder.path / STOP
        ended = before is not None and (before.reason == Reason.USER.word or before.state == "done")
        reason, meant = read_stop_file(self.folder.path)
        this = f"{self._environment.job_id}/{self.number}"
        if (ended and _identity(stop) == self._stop_before) or (reason == Reason.TIME_LIMIT and meant != this):
            stop.unlink(missing_ok=True)


def acquire(folder: RunFolder, environment: Environment) -> Attempt:
    """Create ``folder``, lock it, and return an attempt that has not begun.

    Only the run folder itself is private, and only where it is made here: what is below it follows the umask.

    Raises:
        RefusedError: if the folder cannot be written, or another run is in it.
    """
    lock = Lock(folder.path, job_id=environment.job_id, attempt=environment.attempt)
    stop_before = _identity(folder.path / STOP)
    try:
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock.acquire()
        for path in (folder.figures, folder.logs, folder.checkpoints):
            path.mkdir(exist_ok=True)
        return Attempt(folder, lock, environment, stop_before)
    except OSError as error:
        lock.release()
        raise FolderNotWritableError(folder=folder.path, reason=error.strerror) from error
    except BaseException:
        lock.release()
        raise


@contextlib.contextmanager
def open_attempt(
    folder: RunFolder,
    environment: Environment,
    comm: Communicator,
    describe: Callable[[BaseException], str],
    *,
    may_continue: bool,
) -> Iterator[RootOnly[Attempt]]:
    """Acquire ``folder`` on rank 0, and record an error that ends what is done within; all ranks must call this.

    Args:
        folder: of the run.
        environment: of this process.
        comm: of this rank.
        describe: returns an error as text for people.
        may_continue: whether the attempt may go on with a run that the folder holds.

    Raises:
        RefusedError: on every rank, if the folder cannot be had, or holds a run that is not to be continued.
    """
    try:
        attempt = RootOnly(comm, lambda: acquire(folder, environment))
    except BaseException as error:
        if comm.world.is_root and not is_retryable(error):
            folder.refuse(describe(error), environment)
        raise
    try:
        if not may_continue:
            attempt.run(lambda _: folder.require_no_run())
        yield attempt
    except BaseException as error:
        if attempt.here:
            attempt.here.fail(error, describe(error))
        raise
    finally:
        if attempt.here:
            attempt.here.release()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what tells the file that is there from a later one of the same name; None if there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns

"""Requests to stop: a signal to any rank, or the file STOP in the run folder."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

from slipway.base.bounded_read import SMALL, read_head
from slipway.base.contract import EXIT_STOPPED, STOP


class Reason(IntEnum):
    """Why training stops early; if ranks differ, the largest value wins."""

    NONE = 0
    LAUNCHER = 1
    """torchrun has died, and its ranks would be orphaned; lowest priority, as other reasons are more specific."""
    TIME_LIMIT = 2
    USER = 3
    SIGNAL = 4

    @property
    def word(self) -> str:
        """The reason as written in STOP and status.json."""
        return self.name.lower().replace("_", "-")

    @property
    def signal(self) -> signal.Signals:
        """The signal that requests this stop."""
        return next(number for number, reason in SIGNALS.items() if reason == self)


SIGNALS = {
    signal.SIGUSR1: Reason.TIME_LIMIT,  # schedulers send it before the time limit
    signal.SIGTERM: Reason.SIGNAL,
    signal.SIGINT: Reason.SIGNAL,
    signal.SIGHUP: Reason.SIGNAL,  # the terminal was closed
    signal.SIGRTMAX: Reason.LAUNCHER,  # see stop_if_launcher_dies
}


MAX_GRACEFUL_SIGINTS = 2
"""Number of SIGINTs that count as requests to stop; the next one ends the process at once."""
HEARD = b"\ninterrupted: saving after this step; the third interrupt ends the process at once\n"


class StopRequest:
    """Pending request to stop on this rank. Signal handlers only set a flag; the loop acts on it between steps."""

    carried_over: ClassVar[Reason] = Reason.NONE
    """Request that an earlier session of this process received after its last step, too late to act on it."""

    def __init__(self) -> None:
        """Start without a request."""
        self.reason = Reason.NONE
        self.inherited = Reason.NONE
        """Request that an earlier session of this process passed on."""
        self.answers = True
        """Whether this process prints a message on the first SIGINT."""
        self._interrupts = 0
        self._on_parents_death: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Treat SIGNALS as requests from now on, however often they arrive; not SIGHUP if nohup ignores it."""
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see spawn

    @contextlib.contextmanager
    def handed_on(self) -> Iterator[None]:
        """Inherit the pending request of this process's previous session, and pass a pending one to its next session.

        Enter it before ``listen``, and exit it after ``close``. The code that acts on the request must withdraw it.
        """
        self.reason = self.inherited = StopRequest.carried_over
        try:
            yield
        finally:
            StopRequest.carried_over = self.reason

    def withdraw(self) -> None:
        """Clear the request, because all ranks stop for it."""
        self.reason = Reason.NONE

    def stop_if_launcher_dies(self) -> None:
        """Treat the death of the launcher, the thread that started this process, as a request, until ``close``.

        The kernel sends SIGRTMAX for it, which no other program sends.
        """
        self._on_parents_death = set_parent_death_signal(signal.SIGRTMAX)

    @contextlib.contextmanager
    def exit_on_request(self, program: str) -> Iterator[None]:
        """Let a request end the process while a library waits for the other ranks and blocks Python's signal handlers.

        Use it only where no progress would be lost. A request that arrived earlier also ends the process.

        Args:
            program: the name at the start of the message.
        """

        def end(number: int) -> None:
            died = SIGNALS[signal.Signals(number)] == Reason.LAUNCHER
            what = "its launcher's death" if died else signal.Signals(number).name
            with contextlib.suppress(OSError):  # the terminal was closed
                said = f"ended by {what} while waiting for the other ranks; no progress was lost"
                os.write(2, f"{program}: error[stopped-early]: {said}\n".encode())
            os._exit(EXIT_STOPPED)

        def watch() -> None:
            while number := os.read(reader, 1)[0]:
                if number in SIGNALS:
                    end(number)

        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # the C handler writes to it at once
        if self.reason:
            end(self.reason.signal)
        watcher = threading.Thread(target=watch, name="signals", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.write(writer, b"\0")
            watcher.join()
            os.close(writer)
            os.close(reader)

    def close(self) -> None:
        """Restore the previous signal handlers."""
        if self._on_parents_death is not None:
            set_parent_death_signal(self._on_parents_death)
            self._on_parents_death = None
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: not set by Python

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.reason = max(self.reason, SIGNALS[signal.Signals(number)])
        if number != signal.SIGINT:
            return
        self._interrupts += 1
        if self._interrupts == 1 and self.answers:
            with contextlib.suppress(OSError):  # the reader has closed it
                os.write(2, HEARD)  # at once, as sys.stderr may be in the middle of a write
        if self._interrupts == MAX_GRACEFUL_SIGINTS:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def set_parent_death_signal(number: int) -> int:
    """Set the signal that the kernel sends this process when its parent dies (0: none), and return the previous one.

    See prctl(2), PR_SET_PDEATHSIG.
    """
    pr_set_pdeathsig, pr_get_pdeathsig = 1, 2
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(pr_get_pdeathsig, ctypes.byref(before))
    prctl(pr_set_pdeathsig, number)
    return before.value


def ignore_signals(_worker_id: int = 0) -> None:
    """Ignore SIGNALS in a rank's helper process, which would otherwise die before the rank has saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def read_stop_file(folder: Path) -> tuple[Reason, str]:
    """Return the request in ``folder``/STOP, and the "job/attempt" that it is for ("" if the file names none).

    Any first word other than "time-limit" counts as a user's request. The file is opened without a check for its
    existence, because shared file systems cache for up to a minute that a file was missing.
    """
    try:
        words = read_head(folder / STOP, limit=SMALL).decode(errors="replace").split()
    except OSError:
        return Reason.NONE, ""
    if words[:1] == [Reason.TIME_LIMIT.word]:
        return Reason.TIME_LIMIT, " ".join(words[1:])
    return Reason.USER, ""

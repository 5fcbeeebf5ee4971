"""Requests to stop: by a signal at any rank, or by the file STOP of the run folder."""

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

from slipway.base.contract import EXIT_STOPPED, STOP
from slipway.base.reading import SMALL, read_start


class Reason(IntEnum):
    """Why training stops early; where ranks differ, the largest wins."""

    NONE = 0
    LAUNCHER = 1
    """torchrun has died, and nobody would end its ranks; any other reason says more."""
    TIME_LIMIT = 2
    USER = 3
    SIGNAL = 4

    @property
    def word(self) -> str:
        """The reason as it stands in STOP and in status.json."""
        return self.name.lower().replace("_", "-")

    @property
    def signal(self) -> signal.Signals:
        """The signal that asks for it."""
        return next(number for number, reason in SIGNALS.items() if reason == self)


SIGNALS = {
    signal.SIGUSR1: Reason.TIME_LIMIT,  # what schedulers send before the time limit
    signal.SIGTERM: Reason.SIGNAL,
    signal.SIGINT: Reason.SIGNAL,
    signal.SIGHUP: Reason.SIGNAL,  # the terminal is gone
    signal.SIGRTMAX: Reason.LAUNCHER,  # see follow_launcher
}


PATIENT_INTERRUPTS = 2
"""Interrupts from the keyboard that are taken as requests; the next one ends the process at once."""
HEARD = b"\ninterrupted: the run will be saved behind this step; the third interrupt ends it at once\n"


class StopRequest:
    """What this rank has been asked; handlers only set a flag, the loop acts on it at a step boundary."""

    unmet: ClassVar[Reason] = Reason.NONE
    """What an earlier session of this process was asked after its last step, when nothing was left to stop."""

    def __init__(self) -> None:
        """Nothing has been asked yet."""
        self.reason = Reason.NONE
        self.inherited = Reason.NONE
        """What an earlier session of this process has handed on."""
        self.answers = True
        """Whether this process tells the person at the keyboard that an interrupt was heard."""
        self._interrupts = 0
        self._on_parents_death: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Take SIGNALS as requests from now on, however often they come; SIGHUP not under nohup, which ignores it."""
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see spawn

    @contextlib.contextmanager
    def handed_on(self) -> Iterator[None]:
        """Take over what an earlier session of this process was asked, and leave to the next one what is still asked.

        To be entered before ``listen``, and left after ``close``. Whoever acts on the request withdraws it.
        """
        self.reason = self.inherited = StopRequest.unmet
        try:
            yield
        finally:
            StopRequest.unmet = self.reason

    def withdraw(self) -> None:
        """Forget what was asked, as all ranks stop for it."""
        self.reason = Reason.NONE

    def follow_launcher(self) -> None:
        """Take the death of the launcher, the thread that started this process, as a request, until ``close``.

        It comes as SIGRTMAX, which nobody else sends.
        """
        self._on_parents_death = signal_on_parents_death(signal.SIGRTMAX)

    @contextlib.contextmanager
    def ending_at_once(self, program: str, wait: str) -> Iterator[None]:
        """Let a request end the process during ``wait``, in which a library would not return to Python's handlers.

        To be used where nothing is lost by that. A request that has come before counts, too.

        Args:
            program: begins the message.
            wait: for what this rank waits, ends it.
        """

        def end(number: int) -> None:
            died = SIGNALS[signal.Signals(number)] == Reason.LAUNCHER
            what = "its launcher's death" if died else signal.Signals(number).name
            with contextlib.suppress(OSError):  # the terminal is gone
                said = f"{program}: error[stopped-early]: ended by {what} while it waited {wait}; nothing is lost\n"
                os.write(2, said.encode())
            os._exit(EXIT_STOPPED)

        def watch() -> None:
            while number := os.read(reader, 1)[0]:
                if number in SIGNALS:
                    end(number)

        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)  # written to at once, by C
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
        """Give the signals back to whom they went before."""
        if self._on_parents_death is not None:
            signal_on_parents_death(self._on_parents_death)
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
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, HEARD)  # at once, as sys.stderr may be in the middle of a write
        if self._interrupts == PATIENT_INTERRUPTS:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def signal_on_parents_death(number: int) -> int:
    """Let the kernel send this process ``number`` when its parent dies, 0 for none; return which it was before.

    See prctl(2), PR_SET_PDEATHSIG.
    """
    pr_set_pdeathsig, pr_get_pdeathsig = 1, 2
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(pr_get_pdeathsig, ctypes.byref(before))
    prctl(pr_set_pdeathsig, number)
    return before.value


def ignore_signals(_worker_id: int = 0) -> None:
    """Leave signals to the rank: for its helper processes, which would otherwise die before the rank has saved."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def read_stop_file(folder: Path) -> tuple[Reason, str]:
    """Return what ``folder``/STOP asks for, and which "job/attempt" it means ("" if it does not say).

    Any first word but "time-limit" counts as the user's. The file is opened, not looked up: shared file systems
    remember for up to a minute that a file was missing.
    """
    try:
        words = read_start(folder / STOP, limit=SMALL).decode(errors="replace").split()
    except OSError:
        return Reason.NONE, ""
    if words[:1] == [Reason.TIME_LIMIT.word]:
        return Reason.TIME_LIMIT, " ".join(words[1:])
    return Reason.USER, ""

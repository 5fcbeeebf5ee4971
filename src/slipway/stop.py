"""Requests to stop: by a signal at any rank, or by the file STOP of the run folder."""

from __future__ import annotations

import contextlib
import os
import signal
from enum import IntEnum
from pathlib import Path
from types import FrameType
from typing import Any

from slipway.layout import STOP
from slipway.reading import SMALL, read_start


class Reason(IntEnum):
    """Why training stops early; where ranks differ, the largest wins."""

    NONE = 0
    TIME_LIMIT = 1
    USER = 2
    SIGNAL = 3

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
}


PATIENT_INTERRUPTS = 2
"""Interrupts from the keyboard that are taken as requests; the next one ends the process at once."""
HEARD = b"\ninterrupted: the run will be saved behind this step; the third interrupt ends it at once\n"


class StopRequest:
    """What this rank has been asked; handlers only set a flag, the loop acts on it at a step boundary."""

    def __init__(self) -> None:
        """Nothing has been asked yet."""
        self.reason = Reason.NONE
        self.answers = True
        """Whether this process tells the person at the keyboard that an interrupt was heard."""
        self._interrupts = 0
        self._before: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Take SIGUSR1, SIGTERM and SIGINT as requests from now on, however often they come."""
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see spawn

    def close(self) -> None:
        """Give the signals back to whom they went before."""
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

"""Wait at exit for Gloo's threads, so that a rank that has finished does not abort."""

from __future__ import annotations

import atexit
import functools
import time
from pathlib import Path

THREAD = "pt_gloo_runloop"
"""Name of the threads of torch's ProcessGroupGloo."""
SLEEPING = "S"
"""State of a waiting thread in /proc."""
LIMIT = 5.0
"""Seconds for which an exiting rank waits."""


@functools.cache
def wait_at_exit() -> None:
    """Register the wait; further calls do nothing.

    A thread of Gloo notifies the rank that an operation is done, and then releases the operation's tensors. If it does
    so when Python is gone, torch 2.13 aborts the process ("terminate called without an active exception"). The threads
    end with their process group, but a DeviceMesh keeps its groups alive until then.
    """
    atexit.register(_wait)


def _wait() -> None:
    deadline, idle = time.monotonic() + LIMIT, 0
    while idle < 2 and time.monotonic() < deadline:  # noqa: PLR2004 -- a thread that got the GIL meanwhile runs again
        time.sleep(0.001)  # without the GIL, which a thread may need
        idle = 0 if _is_running() else idle + 1


def _is_running() -> bool:
    for stat in Path("/proc/self/task").glob("*/stat"):
        try:
            name, state = stat.read_text().partition("(")[2].rpartition(")")[::2]
        except OSError:  # the thread has ended
            continue
        if name == THREAD and state.split()[0] != SLEEPING:
            return True
    return False

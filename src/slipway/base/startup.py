"""Seconds from the start of this process to its first optimiser step, by part.

Each part ends with a call of ``mark``, which charges it with the time since the mark before, or since the start of the
process. A rank that is forked after the imports, as by ``--nproc-per-node``, keeps the marks of its parent: there the
seconds count from the command. Under another launcher, that one's own time is not in them.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

IMPORTS = "imports"
"""The interpreter, the command line, torch and this package; of a script with a Session, all that it does before."""
DEVICE = "device"
"""The driver, and the context of a GPU."""
RANKS = "ranks"
"""Waiting for the other ranks, and connecting with them: NCCL, Gloo, MPI."""
FOLDER = "run folder"
"""The lock, and the search for a checkpoint."""
DATA = "data"
"""Opening the data set, and starting the workers that read it."""
MODEL = "model"
"""Building the model and its optimiser, and bringing them to the device; DDP's first pass."""
RESUME = "checkpoint"
"""Reading a checkpoint, if there is one, and beginning the attempt."""
STEP = "first step"
"""The first batch and the first step: cuDNN and cuBLAS load, kernels load or are compiled."""

_seconds: dict[str, float] = {}
_marked: list[float] = []


def mark(part: str) -> None:
    """Charge ``part`` with the time since the last mark."""
    now = time.monotonic()
    since = _marked.pop() if _marked else now - age_of_this_process()
    _marked.append(now)
    _seconds[part] = _seconds.get(part, 0.0) + now - since


def end() -> dict[str, float]:
    """Charge the first step, and return the seconds of each part."""
    mark(STEP)
    return dict(_seconds)


def restart() -> None:
    """Begin to count anew: a run has ended, and another one may follow in this process."""
    _seconds.clear()
    _marked[:] = [time.monotonic()]


def age_of_this_process() -> float:
    """Return for how many seconds it has run; see proc(5)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

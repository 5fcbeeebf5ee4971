"""Startup profile: seconds from the start of this process to its first optimizer step, by part.

Each part ends with a call of ``mark``, which charges it with the time since the previous mark, or since the start of
the process. A rank that is forked after the imports, as with ``--nproc-per-node``, keeps its parent's marks: its
seconds count from the start of the command. Under any other launcher, the launcher's own time is not included.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

IMPORTS = "imports"
"""The interpreter, the command line, torch and this package; for a user script, all code before its Session."""
DEVICE = "device"
"""The driver and the GPU context."""
RANKS = "ranks"
"""Waiting for the other ranks and connecting to them: NCCL, Gloo, MPI."""
FOLDER = "run folder"
"""The lock and the search for a checkpoint."""
DATA = "data"
"""Opening the data set and starting its worker processes."""
MODEL = "model"
"""Building the model and its optimizer and moving them to the device; DDP's first pass."""
RESUME = "checkpoint"
"""Reading a checkpoint, if there is one, and beginning the attempt."""
STEP = "first step"
"""The first batch and the first step: cuDNN and cuBLAS load, kernels are loaded or compiled."""

_seconds: dict[str, float] = {}
_marked: list[float] = []


def mark(part: str) -> None:
    """Charge ``part`` with the time since the last mark."""
    now = time.monotonic()
    since = _marked.pop() if _marked else now - age_of_this_process()
    _marked.append(now)
    _seconds[part] = _seconds.get(part, 0.0) + now - since


def end() -> dict[str, float]:
    """Charge the first step and return the seconds of each part."""
    mark(STEP)
    return dict(_seconds)


def restart() -> None:
    """Reset all parts after the end of a run: another run may follow in this process."""
    _seconds.clear()
    _marked[:] = [time.monotonic()]


def age_of_this_process() -> float:
    """Return the seconds since this process started; see proc(5)."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

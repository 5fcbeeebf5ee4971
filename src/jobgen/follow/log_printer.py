"""Prints a job's log to standard output as it grows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional, Sequence

from slipway.base.bounded_read import SMALL, read_tail

TAIL = 1 << 12
"""Bytes at the end of printed output by which a log that contains it is recognized."""


class LogPrinter:
    """Prints what is new in a job's log, which may begin anew or in another file."""

    def __init__(self) -> None:
        """Create a printer that has printed nothing."""
        self._path: Optional[Path] = None
        self._position = 0

    def print_new(self, path: Path, streams: Sequence[Path]) -> None:
        """Print what ``path`` contains beyond what has been printed; ``streams``: the output of the ranks alone."""
        if path != self._path:
            was_stream = self._path in streams and path not in streams
            self._path, self._position = path, self._after_stream(path) if was_stream else 0
        with path.open("rb") as file:
            if file.seek(0, 2) < self._position:  # the next attempt truncated the file
                self._position = 0
            file.seek(self._position)
            while piece := file.read(1 << 16):
                sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            self._position = file.tell()

    def _after_stream(self, log: Path) -> int:
        """Return the position in ``log`` after the printed output of the ranks; 0 if that is not found in it.

        PBS delivers a job's log at the job's end.
        """
        if not self._path or not self._position:
            return 0
        with self._path.open("rb") as file:
            file.seek(max(0, self._position - TAIL))
            printed = file.read(min(self._position, TAIL))
        rest, _ = read_tail(log, limit=SMALL)
        found = rest.find(printed)
        return log.stat().st_size - len(rest) + found + len(printed) if found >= 0 else 0

"""Prints a job's log to standard output as it grows."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Dict, Optional

PIECE = 1 << 16
"""Maximum bytes of a line that are read at once."""


class LogPrinter:
    """Prints what is new in a job's log, which may begin anew or in another file."""

    def __init__(self) -> None:
        """Create a printer that has printed nothing."""
        self._path: Optional[Path] = None
        self._position = 0
        self._printed: Dict[bytes, int] = Counter()
        """Lines of the ranks' output that have been printed, and how often, until the log with them appears."""
        self._is_stream = False

    def print_new(self, path: Path, *, is_stream: bool) -> None:
        """Print the lines of ``path`` that have not been printed.

        Args:
            path: the job's log, or the ranks' output.
            is_stream: whether it is the latter. The log contains these lines, too, among others.
        """
        if path != self._path:
            if not self._is_stream:
                self._printed.clear()
            self._path, self._position, self._is_stream = path, 0, is_stream
        with path.open("rb") as file:
            if file.seek(0, 2) < self._position:  # the next attempt truncated the file
                self._position = 0
            file.seek(self._position)
            while line := file.readline(PIECE):
                if is_stream:
                    self._printed[line] += 1
                elif self._printed.get(line):
                    self._printed[line] -= 1
                    continue
                sys.stdout.buffer.write(line)
            sys.stdout.flush()
            self._position = file.tell()

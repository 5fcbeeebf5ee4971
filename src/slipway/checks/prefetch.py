"""Warning for scripts that prefetch batches from ``session.batches``: a resumed run skips the prefetched batches."""

from __future__ import annotations

import logging

from slipway.base.errors import warn

MOST = 4
"""Maximum batches that a prefetcher fetches ahead. A loop with a later first step does something else, such as fill a
buffer."""
log = logging.getLogger(__name__)


class PrefetchCheck:
    """Counts a pass's loop bodies in which no optimizer has stepped: the leading ones, and all of them."""

    def __init__(self) -> None:
        """Start with an empty pass."""
        self._has_warned = False
        self.begin_pass(0)

    def begin_pass(self, done: int) -> None:
        """Begin a pass, or resume one of which ``done`` bodies are done."""
        self._before, self._leading, self._without_step = done, 0, 0

    def note_without_step(self, done: int) -> None:
        """Record that no optimizer has stepped in the last of the ``done`` bodies."""
        self._leading += done == self._before + self._leading + 1
        self._without_step += 1

    def warn(self, done: int) -> None:
        """Warn once if steps seem to use earlier batches; call this at a save and at the end of the pass.

        The pattern is no step in the first bodies and one step in each later body. With gradient accumulation, some
        later bodies have no step either.
        """
        bodies = done - self._before
        if self._has_warned or not 0 < self._leading == self._without_step <= MOST or bodies < 2 * self._leading + 2:
            return
        self._has_warned = True
        warn(
            log,
            "reads-ahead",
            "no optimizer stepped in the first %d iterations of this loop, and one stepped in each of the %d later "
            "ones. If the script prefetches batches, a resumed run skips those. Prefetch inside instead: "
            "session.batches(prefetch(loader))",
            self._leading,
            bodies - self._leading,
        )

"""Scripts that fetch batches before they train on them: a resumed run leaves out those that were fetched."""

from __future__ import annotations

import logging

from slipway.base.errors import warn

MOST = 4
"""Batches that a prefetcher fetches ahead, at most: a loop whose first step comes later fills a buffer, say."""
log = logging.getLogger(__name__)


class ReadingAhead:
    """In how many bodies of a pass no optimiser has stepped: of the first ones in a row, and of all."""

    def __init__(self) -> None:
        """Begin a pass."""
        self._has_warned = False
        self.begin_pass(0)

    def begin_pass(self, done: int) -> None:
        """Begin a pass, or the rest of one in a resumed attempt, of which so many bodies are ``done``."""
        self._before, self._leading, self._without_step = done, 0, 0

    def note_without_step(self, done: int) -> None:
        """Note that no optimiser has stepped in the last body of those that are ``done`` now."""
        self._leading += done == self._before + self._leading + 1
        self._without_step += 1

    def warn(self, done: int) -> None:
        """Warn, once, if steps seem to be those of earlier batches; to be called at a save, and at the pass's end.

        They are none in the first bodies, and then one in each. With accumulation, later bodies have none either.
        """
        bodies = done - self._before
        if self._has_warned or not 0 < self._leading == self._without_step <= MOST or bodies < 2 * self._leading + 2:
            return
        self._has_warned = True
        warn(
            log,
            "reads-ahead",
            "no optimiser has stepped in the first %d of this loop's bodies, and one in each of the %d later ones: if "
            "the script fetches batches before it trains on them, a resumed run leaves out those. Prefetch within: "
            "session.batches(prefetch(loader))",
            self._leading,
            bodies - self._leading,
        )

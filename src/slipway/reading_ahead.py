"""Scripts that fetch a batch before they train on the last one: a resumed run leaves out the one that was fetched."""

from __future__ import annotations

import logging

from slipway.errors import warn

log = logging.getLogger(__name__)

LEAST = 4
"""Bodies of a pass from which on it shows: steps in all but the first. With accumulation, others have none either."""


class ReadingAhead:
    """In which bodies of a pass an optimiser has stepped."""

    def __init__(self) -> None:
        """Begin a pass."""
        self._has_warned = False
        self.begin_pass()

    def begin_pass(self) -> None:
        """Begin a pass, or the rest of one in a resumed attempt."""
        self._bodies = self._without_step = 0
        self._begins_with_step = False

    def end_body(self, *, has_stepped: bool) -> None:
        """Count a body, in which an optimiser has stepped or not."""
        self._bodies += 1
        self._without_step += not has_stepped
        self._begins_with_step |= has_stepped and self._bodies == 1

    def warn(self) -> None:
        """Warn, once, if steps seem to be those of the batch before; to be called at a save."""
        if self._has_warned or self._bodies < LEAST or self._begins_with_step or self._without_step > 1:
            return
        self._has_warned = True
        warn(
            log,
            "reads-ahead",
            "no optimiser has stepped in the first body of this loop, and one in each of the %d later ones: if the "
            "script fetches a batch before it trains on the last one, a resumed run leaves out one batch. Prefetch "
            "within: session.batches(prefetch(loader))",
            self._bodies - 1,
        )

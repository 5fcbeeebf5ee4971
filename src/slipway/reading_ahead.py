"""Scripts that fetch batches before they train on them: a resumed run leaves out those that were fetched."""

from __future__ import annotations

import logging

from slipway.errors import warn

log = logging.getLogger(__name__)


class ReadingAhead:
    """In how many bodies of a pass no optimiser has stepped: of the first ones in a row, and of all."""

    def __init__(self) -> None:
        """Begin a pass."""
        self._has_warned = False
        self.begin_pass()

    def begin_pass(self) -> None:
        """Begin a pass, or the rest of one in a resumed attempt."""
        self._bodies = self._leading = self._without_step = 0

    def end_body(self, *, has_stepped: bool) -> None:
        """Count a body, in which an optimiser has stepped or not."""
        self._leading += not has_stepped and self._leading == self._bodies
        self._bodies += 1
        self._without_step += not has_stepped

    def warn(self) -> None:
        """Warn, once, if steps seem to be those of earlier batches; to be called at a save.

        They are none in the first bodies, and then one in each. With accumulation, later bodies have none either.
        """
        if self._has_warned or not 0 < self._leading == self._without_step or self._bodies < 2 * self._leading + 2:
            return
        self._has_warned = True
        warn(
            log,
            "reads-ahead",
            "no optimiser has stepped in the first %d of this loop's bodies, and one in each of the %d later ones: if "
            "the script fetches batches before it trains on them, a resumed run leaves out those. Prefetch within: "
            "session.batches(prefetch(loader))",
            self._leading,
            self._bodies - self._leading,
        )

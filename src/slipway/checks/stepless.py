"""Training in which no optimiser of the session steps, although weights change: another one than was given."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NoReturn

from torch import Tensor

from slipway.base.errors import SessionError, warn

log = logging.getLogger(__name__)

MOST_BATCHES = 1000
"""Batches without a step after which this is looked at within a pass."""


class Stepless:
    """Looks at the weights, as long as no optimiser has stepped. An epoch that only collects data changes none."""

    def __init__(self, parameters: Sequence[Tensor], optimizers: Iterable[str]) -> None:
        """Look at ``parameters``, of the models; the ``optimizers`` are those of the session, by name."""
        self._parameters = parameters
        self._given = f"Session(optimizer=...) was given {', '.join(optimizers) or 'none'}"
        self._before = 0
        self.has_warned = False
        """Whether weights have changed without a step."""

    def begin(self) -> None:
        """Begin a pass."""
        self._before = self._versions()

    def check(self) -> None:
        """Warn, once, if weights have changed since then."""
        if not self.has_warned and self._versions() != self._before:
            self.has_warned = True
            warn(
                log,
                "no-optimizer-step",
                "weights change, and no optimiser of the session has stepped: %s; pass the one that steps",
                self._given,
            )

    def refuse(self) -> NoReturn:
        """Raise a SessionError where the run ends."""
        raise SessionError("no-optimizer-step", f"no optimiser has stepped in the whole run: {self._given}.")

    def _versions(self) -> int:
        """Return a number that grows with each change of a parameter in place, as autograd counts them."""
        return sum(parameter._version for parameter in self._parameters)  # noqa: SLF001 -- there is no public way

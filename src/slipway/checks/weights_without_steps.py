"""Warning for scripts whose weights change though no optimizer of the session steps: another optimizer trains them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NoReturn

from torch import Tensor

from slipway.base.errors import SessionError, warn

log = logging.getLogger(__name__)

CHECK_AFTER_BATCHES = 1000
"""Number of batches without a step after which the check runs within a pass."""


class StepCheck:
    """Watches the weights until an optimizer has stepped. An epoch that only collects data changes no weights."""

    def __init__(self, parameters: Sequence[Tensor], optimizers: Iterable[str]) -> None:
        """Watch the models' ``parameters``; ``optimizers`` are the names of the session's optimizers."""
        self._parameters = parameters
        self._given = f"Session(optimizer=...) has {', '.join(optimizers) or 'none'}"
        self._before = 0
        self.has_warned = False
        """Whether the warning was logged: weights have changed without a step."""

    def begin(self) -> None:
        """Record the weights' versions at the beginning of a pass."""
        self._before = self._versions()

    def check(self) -> None:
        """Warn once if weights have changed since ``begin``."""
        if not self.has_warned and self._versions() != self._before:
            self.has_warned = True
            warn(
                log,
                "no-optimizer-step",
                "weights change, but no optimizer of the session has stepped: %s; pass the optimizer that steps",
                self._given,
            )

    def refuse(self) -> NoReturn:
        """Raise a SessionError at the end of a run without a step."""
        raise SessionError("no-optimizer-step", f"no optimizer has stepped in the whole run: {self._given}.")

    def _versions(self) -> int:
        """Return the sum of the parameters' versions, which grows with each change in place."""
        return sum(parameter._version for parameter in self._parameters)  # noqa: SLF001 -- torch has no public API for it

"""At which steps ranks agree, records are written, and checkpoints saved: the same ones on every rank."""

from __future__ import annotations

from slipway.agreement import Pace


class Schedule:
    """The next step at which something is due."""

    def __init__(self, *, log_interval: int, checkpoint_interval: int | None) -> None:
        """Plan records and checkpoints at multiples of these numbers of steps."""
        self._log_interval = log_interval
        self._checkpoint_interval = checkpoint_interval
        self.pace = Pace()
        """Of the agreements."""
        self.next_step = 0
        """The step after which something is due."""

    def plan(self, step: int) -> None:
        """Look forward from ``step``."""
        due = [step + self.pace.steps, _next_multiple(step, self._log_interval)]
        if self._checkpoint_interval:
            due.append(_next_multiple(step, self._checkpoint_interval))
        self.next_step = min(due)

    def log_due(self, step: int) -> bool:
        """Whether a record of the training loss belongs to ``step``."""
        return step % self._log_interval == 0

    def checkpoint_due(self, step: int) -> bool:
        """Whether a checkpoint within an epoch belongs to ``step``."""
        return bool(self._checkpoint_interval) and step % (self._checkpoint_interval or 1) == 0


def _next_multiple(step: int, interval: int) -> int:
    return (step // interval + 1) * interval

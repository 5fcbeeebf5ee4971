"""How the time of a run's attempts was spent, as the page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipway.goodput import MEANINGS, Spent, spare_hours, sums_of


class Goodput(NamedTuple):
    """What all attempts have spent together, and each by itself."""

    attempts: Sequence[Spent]

    @property
    def total(self) -> float:
        """Seconds of all attempts."""
        return sum(spent.total for spent in self.attempts)

    @property
    def parts(self) -> list[tuple[str, str, float, float]]:
        """Each part: its name, what it means, its seconds, and its share of all."""
        seconds = sums_of(self.attempts)
        return [(name, MEANINGS[name], seconds[name], seconds[name] / self.total) for name in MEANINGS]

    @property
    def spare_hours(self) -> float:
        """Node-hours for which spare nodes have waited."""
        return spare_hours(self.attempts)

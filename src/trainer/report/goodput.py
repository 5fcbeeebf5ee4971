"""How the time of a run's attempts was spent, as the page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slipway.goodput import MEANINGS, Spent


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
        sums = {name: sum(spent.seconds[name] for spent in self.attempts) for name in MEANINGS}
        return [(name, MEANINGS[name], seconds, seconds / self.total) for name, seconds in sums.items()]

    @property
    def spare_hours(self) -> float:
        """Node-hours for which spare nodes have waited."""
        return sum(spent.spares * spent.total for spent in self.attempts) / 3600

"""Axes of a figure: range, ticks and scale."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

PARTS = 5
"""Number of parts into which the ticks divide a linear axis."""
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
MIN_LOG_RATIO = 20.0
"""An axis is logarithmic if the largest value exceeds this many times the smallest."""


@dataclasses.dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``, in the unit of the values."""

    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def share(self, value: float) -> float:
        """Return the position of ``value`` on the axis, from 0 to 1."""
        if self.log:
            return (math.log(max(value, 5e-324)) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return (value - self.low) / (self.high - self.low)


def linear(values: Sequence[float], *, zero: bool = False, tight: bool = False) -> Axis:
    """Return a linear axis for finite ``values``: including 0 if ``zero``, ending at the values if ``tight``."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if not math.isfinite(high - low):  # values close to the largest float
        low, high = low / 4, high / 4
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        room = abs(high) / 10 or 1.0
        low, high = (0.0 if zero else low - room), high + room
    step = _step(high - low)
    if not tight:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Axis(low, high, tuple(round(number * step, 15) for number in range(first, last + 1)))


def logarithmic(values: Sequence[float]) -> Axis:
    """Return a logarithmic axis for finite, positive ``values``."""
    low, high = min(values), max(values)
    decades = math.log10(high) - math.log10(low)
    digits = (1, 2, 5) if decades < 3 else (1,)  # noqa: PLR2004 -- more would overlap
    every = max(1, round(decades / 5))
    powers = range(math.floor(math.log10(low)), min(math.ceil(math.log10(high)), 307) + 1)
    places = [digit * 10.0**power for power in powers for digit in digits if power % every == 0]
    inside = tuple(place for place in places if low <= place <= high)
    return Axis(low, high, inside or (low, high), log=True)


def fitting(values: Sequence[float], *, zero: bool = False) -> Axis:
    """Return a logarithmic axis if all ``values`` are positive and far apart, otherwise a linear one."""
    if not zero and len(values) > 1 and 0 < MIN_LOG_RATIO * min(values) < max(values) < math.inf:
        return logarithmic(values)
    return linear(values, zero=zero)


def _step(span: float) -> float:
    """Return a round tick distance that divides ``span`` into about ``PARTS`` parts."""
    power = 10.0 ** math.floor(math.log10(span / PARTS))
    return next(power * step for step in STEPS if power * step >= span / PARTS * 0.999)


def label(value: float) -> str:
    """Return ``value`` as the text of a tick."""
    if value and not 1e-3 <= abs(value) < 1e5:  # noqa: PLR2004 -- otherwise too many zeros
        mantissa, exponent = f"{value:.3e}".split("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    return f"{value:,.10g}" if abs(value) >= 1e4 else f"{value:.6g}"  # noqa: PLR2004

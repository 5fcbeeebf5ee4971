"""Analysis of a scaling study: speed-up, efficiency, cost and the recommended point. Reads no files."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

MIN_EFFICIENCY = 0.7
"""Minimum efficiency at which more ranks are worth their cost."""
LIMITING = 0.2
"""Minimum share of the time at which waiting for data or communication is reported as a bottleneck."""
SAME = 0.02
"""Curves are the same if they differ by at most this fraction of their range."""


@dataclasses.dataclass
class Measured:
    """A point of a study with the measurements of its run."""

    name: str
    ranks: int
    units: int
    """GPUs or CPU cores of all ranks."""
    group: str
    """Backend, and whether in a container; only points of the same group are compared."""
    cores: int = 1
    """CPU cores per rank."""
    alike: object = None
    """Cores and batch per rank; if these are equal, the steps of two points differ only by communication."""
    rate: float | None = None
    """Samples/s over all ranks, or a proportional number if a script does not record it."""
    seconds: float | None = None
    """Total time for which the ranks held their units, over all attempts."""
    data_share: float | None = None
    """Share of the training time in which a rank waits for data."""
    seconds_per_step: float | None = None
    """Time of an optimizer step without the wait for data."""
    seconds_per_batch: float | None = None
    """Time of an optimizer step with the wait for data."""
    communication: float | None = None
    """Estimated communication share of a step: its excess over the step of a single rank with the same batch per rank.

    This is the smaller of the shares without and with the wait for data, because a rank with late data delays the
    others.
    """
    speedup: float | None = None
    """Rate relative to the smallest point of the group."""
    ideal: float | None = None
    """Speed-up if the rate were proportional to the units."""

    @property
    def efficiency(self) -> float | None:
        """Speed-up divided by the ideal speed-up."""
        return self.speedup / self.ideal if self.speedup is not None and self.ideal else None

    @property
    def cost(self) -> float | None:
        """GPU-hours or core-hours."""
        return None if self.seconds is None else self.units * self.seconds / 3600


def compare(points: Sequence[Measured]) -> None:
    """Set the speed-up of every point that has a rate, and the communication estimates.

    The baseline is the point with the fewest units in its group. Of several such points, the fastest one is used, so
    that speed-ups are not exaggerated.
    """
    for group in {point.group for point in points}:
        known = [point for point in points if point.group == group and point.rate]
        if not known:
            continue
        base = min(known, key=lambda point: (point.units, -(point.rate or 0.0)))
        for point in known:
            point.speedup = (point.rate or 0.0) / (base.rate or 1.0)
            point.ideal = point.units / base.units
    for point in points:
        point.communication = _communication(point, points)


def _communication(point: Measured, points: Sequence[Measured]) -> float | None:
    if point.ranks == 1 or not point.seconds_per_step or not point.seconds_per_batch or point.alike is None:
        return None
    alone = [
        (other.seconds_per_step, other.seconds_per_batch)
        for other in points
        if other.ranks == 1 and (other.group, other.alike) == (point.group, point.alike)
        if other.seconds_per_step and other.seconds_per_batch
    ]
    if not alone:
        return None
    step, batch = (min(seconds) for seconds in zip(*alone, strict=True))
    return max(0.0, min(1 - step / point.seconds_per_step, 1 - batch / point.seconds_per_batch))


def bottleneck(point: Measured, *, scaling: str) -> str:
    """Return a sentence about the bottleneck of ``point`` and its remedy."""
    found = []
    if point.data_share is not None and point.data_share >= LIMITING:
        found.append(
            f"ranks wait for data during {percent(point.data_share)} of training: use more data workers (--workers) or "
            "faster storage"
        )
    if point.communication is not None and point.communication >= LIMITING:
        found.append(
            f"an estimated {percent(point.communication)} of a step is communication, unless ranks share cores or "
            "memory bandwidth: use a faster network, larger batches or --grad-accum-steps"
        )
    if found:
        return f"{point.name}: {'; '.join(found)}."
    if point.data_share is None:
        return f"The bottleneck of {point.name} is unknown: its records do not contain the wait for data."
    waits = f"{point.name} waits for data during {percent(point.data_share)} of training"
    if point.communication is not None:
        waits += f", and communication takes an estimated {percent(point.communication)} of a step"
    if point.efficiency is None or point.efficiency >= MIN_EFFICIENCY:
        return f"No bottleneck: {waits}."
    if point.communication is None and scaling == "strong":
        said = "so the cause is communication or too small batches per rank: run a study with --scaling weak to decide"
    else:
        said = "which does not explain its efficiency: do ranks share cores, or do other jobs use the node?"
    return f"{waits}, {said}."


def advise(points: Sequence[Measured], *, unit: str, scaling: str) -> list[str]:
    """Return a sentence that recommends a point, then sentences on its bottleneck and that of the fastest larger point.

    Args:
        points: the points, after ``compare``.
        unit: name of the units in the plural: GPUs or cores.
        scaling: strong or weak.
    """
    known = [point for point in points if point.efficiency is not None and point.rate]
    if len({point.units for point in known}) < 2:  # noqa: PLR2004
        return [f"No advice: speeds at two or more numbers of {unit} are needed; {len(known)} points have one."]
    worthwhile = [point for point in known if (point.efficiency or 0.0) >= MIN_EFFICIENCY]
    best = max(worthwhile, key=lambda point: (point.rate or 0.0, -point.units))
    reason = (
        f"it is the fastest point with an efficiency of at least {percent(MIN_EFFICIENCY)}: "
        f"{best.speedup:.2f} times the speed of the smallest point, at {percent(best.efficiency or 0.0)}"
    )
    more = [point for point in known if point.units > best.units]
    if not more:
        said = f"this is the largest point, so more {unit} may be worthwhile too."
        return [f"Take {best.name}: {reason}; {said}", bottleneck(best, scaling=scaling)]
    fastest = max(more, key=lambda point: point.rate or 0.0)
    gain = (fastest.rate or 0.0) / (best.rate or 1.0) - 1
    than = f"{percent(gain)} faster" if gain > 0 else f"{percent(-gain)} slower"
    said = f"{fastest.name} is {than} with {fastest.units} {unit} instead of {best.units}."
    limits = [bottleneck(point, scaling=scaling) for point in (best, fastest)]
    return [f"Take {best.name}: {reason}; {said}", *limits]


def percent(share: float) -> str:
    """Format a fraction as a whole percentage."""
    return f"{100 * share:.0f} %"


@dataclasses.dataclass(frozen=True)
class CurveDistance:
    """Largest difference between curves at the same step."""

    largest: float
    step: int
    names: tuple[str, str]
    range: float
    """Difference between the highest and the lowest value of all curves."""

    @property
    def same(self) -> bool:
        """Whether the curves would coincide in a figure."""
        return self.largest <= SAME * self.range


def difference(curves: Mapping[str, Mapping[int, float]]) -> CurveDistance | None:
    """Return the largest difference between two of ``curves`` at the same step; None if no two share a step.

    Args:
        curves: for each name, the finite values by step.
    """
    values = [value for curve in curves.values() for value in curve.values()]
    found = [
        (abs(first[step] - second[step]), step, (one, other))
        for (one, first), (other, second) in itertools.combinations(curves.items(), 2)
        for step in first.keys() & second.keys()
    ]
    if not found:
        return None
    largest, step, names = max(found)
    return CurveDistance(largest, step, names, max(values) - min(values))

"""What a scaling study shows: speed-up, efficiency, cost, and which point to take. Nothing here reads a file."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

WORTHWHILE = 0.7
"""Efficiency from which on more ranks are worth their cost."""
LIMITING = 0.2
"""Share of the time from which on waiting for data, or communication, is named as what limits a point."""
SAME = 0.02
"""Share of the range of a curve within which curves count as the same."""


@dataclasses.dataclass
class Measured:
    """One point of a study, and what its run has measured."""

    name: str
    ranks: int
    units: int
    """GPUs of all ranks, or their CPU cores."""
    group: str
    """Points are compared with those of the same backend, in a container or not."""
    cores: int = 1
    """Of each rank."""
    alike: object = None
    """What must be equal for the steps of two points to differ by communication alone: cores and batch of a rank."""
    rate: float | None = None
    """Samples/s of all ranks; where a script records none, a number in proportion to it."""
    seconds: float | None = None
    """Time for which its ranks held their units, in all attempts."""
    data_share: float | None = None
    """Of the time of training, for which a rank waits for data."""
    seconds_a_step: float | None = None
    """Time of an optimiser step, without that wait."""
    seconds_a_batch: float | None = None
    """The same with that wait."""
    communication: float | None = None
    """An estimate: by how much its step is longer than that of one rank with as large a batch, as a share of it.

    The smaller one of the shares without and with the wait for data: a rank whose data are late holds up the others.
    """
    speedup: float | None = None
    """Rate in terms of the smallest point's of its group."""
    ideal: float | None = None
    """The speed-up if the rate were in proportion to the units."""

    @property
    def efficiency(self) -> float | None:
        """Speed-up in terms of the ideal one."""
        return self.speedup / self.ideal if self.speedup is not None and self.ideal else None

    @property
    def cost(self) -> float | None:
        """GPU-hours, or core-hours."""
        return None if self.seconds is None else self.units * self.seconds / 3600


def compare(points: Sequence[Measured]) -> None:
    """Fill in the speed-up of every point that has a rate.

    The basis is the point with the fewest units in its group; of several the fastest, so that none looks too good.
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
    if point.ranks == 1 or not point.seconds_a_step or not point.seconds_a_batch or point.alike is None:
        return None
    alone = [
        (other.seconds_a_step, other.seconds_a_batch)
        for other in points
        if other.ranks == 1 and (other.group, other.alike) == (point.group, point.alike)
        if other.seconds_a_step and other.seconds_a_batch
    ]
    if not alone:
        return None
    step, batch = (min(seconds) for seconds in zip(*alone, strict=True))
    return max(0.0, min(1 - step / point.seconds_a_step, 1 - batch / point.seconds_a_batch))


def bottleneck(point: Measured, *, scaling: str) -> str:
    """Return in a sentence what ``point`` loses its time by, and what helps against it."""
    found = []
    if point.data_share is not None and point.data_share >= LIMITING:
        found.append(
            f"{percent(point.data_share)} of its training waits for data: more data workers (--workers) or faster "
            "storage help"
        )
    if point.communication is not None and point.communication >= LIMITING:
        found.append(
            f"an estimated {percent(point.communication)} of a step is communication, unless ranks share cores or "
            "memory bandwidth: a faster network, larger batches or --grad-accum-steps help"
        )
    if found:
        return f"{point.name}: {'; '.join(found)}."
    if point.data_share is None:
        return f"What {point.name} loses its time by is not known: its records do not tell how long it waits for data."
    waits = f"{point.name} waits for data for {percent(point.data_share)} of its training"
    if point.communication is not None:
        waits += f", and communication takes an estimated {percent(point.communication)} of a step"
    if point.efficiency is None or point.efficiency >= WORTHWHILE:
        return f"No bottleneck: {waits}."
    if point.communication is None and scaling == "strong":
        said = "so it is communication, or batches too small for a rank: a study with --scaling weak tells which"
    else:
        said = "which does not explain its efficiency: do ranks share cores, or other jobs the node?"
    return f"{waits}, {said}."


def advise(points: Sequence[Measured], *, unit: str, scaling: str) -> list[str]:
    """Return one sentence on which point to take and why, and one on what limits it and the largest point.

    Args:
        points: after ``compare``.
        unit: what is counted, in the plural: GPUs or cores.
        scaling: strong or weak.
    """
    known = [point for point in points if point.efficiency is not None and point.rate]
    if len({point.units for point in known}) < 2:  # noqa: PLR2004
        return [f"No advice: speeds at two numbers of {unit} or more are needed, and {len(known)} points have one."]
    worthwhile = [point for point in known if (point.efficiency or 0.0) >= WORTHWHILE]
    best = max(worthwhile, key=lambda point: (point.rate or 0.0, -point.units))
    reason = (
        f"of the points with an efficiency of {percent(WORTHWHILE)} or more it is the fastest: "
        f"{best.speedup:.2f} times the speed of the smallest point, at {percent(best.efficiency or 0.0)}"
    )
    more = [point for point in known if point.units > best.units]
    if not more:
        said = f"more {unit} may pay too, as this is the largest point."
        return [f"Take {best.name}: {reason}; {said}", bottleneck(best, scaling=scaling)]
    fastest = max(more, key=lambda point: point.rate or 0.0)
    gain = (fastest.rate or 0.0) / (best.rate or 1.0) - 1
    than = f"{percent(gain)} faster" if gain > 0 else f"{percent(-gain)} slower"
    said = f"{fastest.name} is {than} with {fastest.units} {unit} in place of {best.units}."
    limits = [bottleneck(point, scaling=scaling) for point in (best, fastest)]
    return [f"Take {best.name}: {reason}; {said}", *limits]


def percent(share: float) -> str:
    """Return a share as a sentence names it."""
    return f"{100 * share:.0f} %"


@dataclasses.dataclass(frozen=True)
class CurveDistance:
    """How far curves are apart at most."""

    largest: float
    step: int
    names: tuple[str, str]
    range: float
    """Between the lowest and the highest value of all."""

    @property
    def same(self) -> bool:
        """Whether the curves would lie on each other in a figure."""
        return self.largest <= SAME * self.range


def difference(curves: Mapping[str, Mapping[int, float]]) -> CurveDistance | None:
    """Return where two of ``curves`` are farthest apart at the same step; None where no two have a step in common.

    Args:
        curves: for each name the values by step, all finite.
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

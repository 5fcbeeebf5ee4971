"""SVG figures in the page's colours: curves, and the timeline of attempts.

This module formats all numbers in paths. All text passes through the template, which escapes it.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Sequence

from markupsafe import Markup

from slipway.report.axes import Axis, fitting, label, linear
from slipway.report.files.attempts import PastAttempt
from slipway.report.html import clock, render

WIDTH, HEIGHT = 560, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 12, 40
"""Margins for the axis labels."""
MOST_POINTS = 400
"""Maximum number of points of a curve: about one per pixel of a figure that is one page column wide."""
MAX_DOTS = 60
"""Maximum number of points of a curve for which each point has a dot."""
COLOURS = 6
"""Number of colors in page.css; further curves reuse them with dashes."""
BAR = 22
TIMELINE = 900
"""Width of the timeline, in the unit in which a figure of curves is 560 wide."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """A curve of a figure."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    colour: int = 0
    """Number of the color; numbers from ``COLOURS`` on reuse the colors with dashes."""
    steps: Sequence[float] = ()
    """Optimizer step of each point, with which a figure marks ``attempts``."""


@dataclasses.dataclass(frozen=True)
class _Drawn:
    name: str
    style: str
    path: str
    dots: list[tuple[str, str]]
    lost: list[str]


def curves(
    lines: Sequence[Curve],
    *,
    title: str,
    x: str,
    zero: bool = False,
    late: bool = False,
    ideal: Curve | None = None,
    scattered: bool = False,
    attempts: Sequence[PastAttempt] = (),
) -> Markup:
    """Return a figure of ``lines`` with common axes; empty if no curve has a point.

    Args:
        lines: the curves.
        title: the figure's title: the quantity and its unit.
        x: the label of the horizontal axis.
        zero: whether the vertical axis includes 0.
        late: whether to scale the vertical axis to the curves without their steep first tenth.
        ideal: the ideal curve, drawn dotted.
        scattered: whether the points are unordered: draw dots without a line, on an axis that need not begin at 0.
        attempts: a vertical line marks where each of these but the first began.
    """
    found = [_points(line.xs, line.ys) for line in lines]
    aims = _points(ideal.xs, ideal.ys)[0] if ideal else []
    drawn = [point for part, _ in found for point in part] + aims
    if not drawn:
        return Markup()
    places = [place for place, _ in drawn] + [place for _, lost in found for place in lost]
    across = fitting(places) if scattered else linear([0.0, *places], tight=True)
    values = [value for _, value in drawn]
    after = [value for part, _ in found for _, value in part[len(part) // 10 :]]
    up = fitting(after if late and len(set(after)) > 1 and not ideal else values, zero=zero)
    starts: dict[str, list[int]] = {}
    for place, number in _starts(attempts, lines):
        starts.setdefault(_across(place, across), []).append(number)
    thinned = any(len(part) > MOST_POINTS for part, _ in found)
    shown = [
        _draw(line, _thin(part), lost, across, up, scattered=scattered)
        for line, (part, lost) in zip(lines, found, strict=True)
        if part
    ]
    return render(
        "curves.svg",
        title=title,
        x=x,
        scale=", logarithmic" if up.log else "",
        thinned=thinned,
        outside=any(value < up.low for _, value in drawn),
        shown=shown,
        starts=starts,
        ideal=(ideal.name, _path([_place(point, across, up) for point in aims])) if ideal and aims else None,
        xticks=[(_across(tick, across), label(tick)) for tick in across.ticks],
        yticks=[(_up(tick, up), label(tick)) for tick in up.ticks],
        summary="; ".join(
            f"{line.name} from {part[0][1]:.4g} to {part[-1][1]:.4g}"
            for line, (part, _) in zip(lines, found, strict=True)
            if part
        ),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        top=TOP,
        bottom=HEIGHT - BOTTOM,
    )


def _starts(attempts: Sequence[PastAttempt], lines: Sequence[Curve]) -> list[tuple[float, int]]:
    """Return the x value at which each attempt but the first began, up to the last record, and its number."""
    began = [(each.first, each.number) for each in attempts if each.number > 1 and each.first is not None]
    if not began:
        return []
    records = [pair for line in lines for pair in zip(line.steps, line.xs, strict=False) if math.isfinite(pair[1])]
    known = sorted([(0.0, 0.0), *records])
    return [(_interpolate(known, step), number) for step, number in began if step <= known[-1][0]]


def _interpolate(points: Sequence[tuple[float, float]], x: float) -> float:
    """Return the y value at ``x`` of the line through the sorted ``points``, which begin at or before ``x``."""
    after = bisect.bisect(points, (x, math.inf))
    (left, low), (right, high) = points[after - 1], points[min(after, len(points) - 1)]
    share = (x - left) / (right - left) if right > left else 0.0
    return (1 - share) * low + share * high


def _draw(
    line: Curve, part: list[tuple[float, float]], lost: list[float], across: Axis, up: Axis, *, scattered: bool
) -> _Drawn:
    places = [_place(point, across, up) for point in part]
    dashes = f" d{line.colour // COLOURS}" if line.colour >= COLOURS else ""
    return _Drawn(
        name=line.name,
        style=f"c{line.colour % COLOURS}{dashes}",
        path="" if scattered else _path(places),
        dots=places if scattered or len(places) <= MAX_DOTS else [],
        lost=[_across(place, across) for place in lost[:MAX_DOTS]],
    )


def _across(value: float, axis: Axis) -> str:
    return f"{LEFT + axis.share(value) * (WIDTH - LEFT - RIGHT):.1f}"


def _up(value: float, axis: Axis) -> str:
    return f"{HEIGHT - BOTTOM - min(max(axis.share(value), -9.0), 9.0) * (HEIGHT - TOP - BOTTOM):.1f}"


def _place(point: tuple[float, float], across: Axis, up: Axis) -> tuple[str, str]:
    return _across(point[0], across), _up(point[1], up)


def _path(places: Sequence[tuple[str, str]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in places)


def _points(xs: Sequence[float], ys: Sequence[float]) -> tuple[list[tuple[float, float]], list[float]]:
    """Return the finite points, and the x values of points whose y value is not finite."""
    drawn = [(x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y)]
    lost = [x for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and not math.isfinite(y)]
    return drawn, lost


def _thin(found: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most MOST_POINTS of the points ``found``, keeping every extreme that the figure could show.

    The function divides the points into sections of equal length and keeps the lowest and the highest point of each,
    in their order. It also keeps the first and the last point. (Simplified from M4: Jugel et al., VLDB 2014.)
    """
    if len(found) <= MOST_POINTS:
        return found
    runs = MOST_POINTS // 2 - 1
    kept = [found[0]]
    for number in range(runs):
        part = found[number * len(found) // runs : (number + 1) * len(found) // runs]
        low = min(range(len(part)), key=lambda index: part[index][1])
        high = max(range(len(part)), key=lambda index: part[index][1])
        kept += [part[index] for index in sorted({low, high})]
    if kept[-1] != found[-1]:
        kept.append(found[-1])
    return kept[1:] if kept[0] == kept[1] else kept


def timeline(attempts: Sequence[PastAttempt], *, now: float) -> Markup:
    """Return a figure of the attempts over time; empty if no start time is known."""
    known = [attempt for attempt in attempts if attempt.began is not None]
    if not known:
        return Markup()
    ends = {
        attempt.number: now if attempt.state == "running" else attempt.ended or attempt.began or 0.0
        for attempt in known
    }
    start = min(attempt.began for attempt in known if attempt.began is not None)
    seconds, unit = in_unit(max(ends.values()) - start)
    axis = linear([0.0, max((max(ends.values()) - start) / seconds, 1e-3)], tight=True)
    bars = []
    for row, attempt in enumerate(known):
        left = LEFT + axis.share((attempt.began - start) / seconds) * (TIMELINE - LEFT - RIGHT)  # type: ignore[operator] # known by now
        right = LEFT + axis.share((ends[attempt.number] - start) / seconds) * (TIMELINE - LEFT - RIGHT)
        width = max(right - left, 2.0)
        inside = width > 130  # noqa: PLR2004 -- room for "attempt 12 out-of-time"
        # Otherwise beside the bar, on the side with more room.
        anchor, text_x = ("start", left + 6) if inside else ("start", left + width + 5)
        if not inside and left + width > 0.75 * TIMELINE:
            anchor, text_x = "end", left - 5
        bars.append((attempt, f"{left:.1f}", f"{width:.1f}", 6 + row * BAR, anchor, f"{text_x:.1f}", inside))
    return render(
        "timeline.svg",
        bars=bars,
        unit=unit,
        start=clock(start),
        ticks=[(f"{LEFT + axis.share(tick) * (TIMELINE - LEFT - RIGHT):.1f}", label(tick)) for tick in axis.ticks],
        width=TIMELINE,
        bottom=10 + len(known) * BAR,
        height=10 + len(known) * BAR + BOTTOM,
    )


def in_unit(seconds: float) -> tuple[float, str]:
    """Return a suitable unit for a time of this length: its size in seconds and its name (s, min or h)."""
    if not math.isfinite(seconds) or seconds < 300:  # noqa: PLR2004
        return 1.0, "s"
    return (60.0, "min") if seconds < 3 * 3600 else (3600.0, "h")

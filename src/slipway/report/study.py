"""Section of a scaling study: a folder with study.json (docs/reference/run-folder.md) and the runs of its points."""

from __future__ import annotations

import math
from typing import Literal

import msgspec
from markupsafe import Markup

from slipway.report.figures import Curve, curves
from slipway.report.files.attempts import timestamp
from slipway.report.files.untrusted_folder import Folder
from slipway.report.html import render
from slipway.report.overview import common_figures
from slipway.report.run_list import RunSet, below, read_description, read_runs
from slipway.report.run_page import RunSummary
from slipway.report.scaling import CurveDistance, Measured, advise, compare, difference

FILE = "study.json"
MOST_POINTS = 500
MAX_CLOCK_SKEW = 2
"""Allowed difference in seconds between the clocks of the login node and a job's nodes."""


class Point(msgspec.Struct, frozen=True):
    """A point in study.json."""

    name: str
    run: str
    ranks: int
    nodes: int = 1
    cpus: int = 1
    backend: str = ""
    container: bool = False
    submitted: str | None = None
    job: str | None = None

    def __post_init__(self) -> None:
        """Reject impossible values; msgspec converts the ValueError to a ValidationError."""
        if not (1 <= self.ranks < 1 << 24 and 1 <= self.nodes < 1 << 24 and 1 <= self.cpus < 1 << 16):
            raise ValueError("ranks, nodes or cpus are out of range")

    def waited(self, run: RunSummary | None) -> float | None:
        """Return the seconds from the last submission to the next attempt of ``run``; None if unknown."""
        submitted = timestamp(self.submitted)
        if run is None or submitted is None:
            return None
        waits = [began - submitted for began in run.start_times if began > submitted - MAX_CLOCK_SKEW]
        return max(0.0, waits[0]) if waits else None


def read_study(folder: Folder, *, name: str, first: int) -> RunSet:
    """Return the study in ``folder``; the sections of its runs have consecutive ids from run-``first``."""
    description = read_description(folder, FILE)
    scaling: Literal["strong", "weak"] = "weak" if description.get("scaling") == "weak" else "strong"
    points = below(folder, FILE, description.get("points"), Point, what="point", most=MOST_POINTS)
    found = read_runs(folder, points, first=first)
    runs = [run for _, run in found if run]
    on_gpus = any(run.device == "cuda" for run in runs)
    measured = [_measured(point, run, scaling, on_gpus=on_gpus) for point, run in found]
    compare(measured)
    apart = {key: _apart(runs, key) for key in ("loss", "accuracy")} if scaling == "strong" else {}
    section = render(
        "study.html",
        name=name,
        folder=str(folder.path),
        scaling=scaling,
        warnings=folder.warnings,
        unit="GPU" if on_gpus else "core",
        advice=advise(measured, unit="GPUs" if on_gpus else "cores", scaling=scaling),
        groups=list(dict.fromkeys(row.group for row in measured)),
        estimated=any(row.communication is not None for row in measured),
        rows=[(point, run, row) for (point, run), row in zip(found, measured, strict=True)],
        speed=_speed_figures(measured, "GPUs" if on_gpus else "CPU cores"),
        learning=common_figures(runs, by_epoch=not all(each and each.same for each in apart.values()) or not apart),
        apart={key: each for key, each in apart.items() if each},
    )
    return RunSet(section, runs, folder.warnings)


def _measured(point: Point, run: RunSummary | None, scaling: str, *, on_gpus: bool) -> Measured:
    units = point.ranks * (run.devices if run else 1) if on_gpus else point.ranks * point.cpus
    measured = Measured(
        name=point.name,
        ranks=point.ranks,
        units=units,
        group=f"{point.backend}{', container' if point.container else ''}",
        cores=point.cpus,
    )
    if run:
        measured.rate = run.rate
        if run.rate is None and run.steps_rate is not None:
            measured.rate = run.steps_rate * (point.ranks if scaling == "weak" else 1)
        measured.seconds = run.held or run.seconds
        if run.shares:
            measured.data_share = run.shares.data_share
            measured.seconds_per_step, measured.seconds_per_batch = (
                run.shares.seconds_per_step,
                run.shares.seconds_per_batch,
            )
        if batch := _batch_per_rank(run, point.ranks):
            measured.alike = (point.cpus, batch)
    return measured


def _batch_per_rank(run: RunSummary, ranks: int) -> float | None:
    """Return the samples per step on each rank; None if the configuration does not contain them."""
    try:
        each = float(run.config.get("train.batch_size_per_rank", 0))
        return each or float(run.config["train.batch_size"]) / ranks
    except (KeyError, ValueError):
        return None


def _apart(runs: list[RunSummary], key: str) -> CurveDistance | None:
    lines = {run.name: run.validation[key] for run in runs if key in run.validation}
    return difference(
        {
            name: {int(step): value for step, value in zip(line.step, line.value, strict=True) if math.isfinite(value)}
            for name, line in lines.items()
        }
    )


def _speed_figures(measured: list[Measured], unit: str) -> list[Markup]:
    """Return figures of speed-up and efficiency over the units, with a curve per group and cores per rank."""
    known = sorted((point for point in measured if point.speedup is not None), key=lambda point: point.units)
    lines_of: dict[tuple[str, int], list[Measured]] = {}
    for point in known:
        lines_of.setdefault((point.group, point.cores), []).append(point)
    several = len({cores for _, cores in lines_of}) > 1
    drawn = []
    for title, value, best in (("speed-up", "speedup", "ideal"), ("efficiency (%)", "efficiency", "")):
        scale = 1 if best else 100
        lines = [
            Curve(
                f"{group}, {cores} CPU core(s) per rank" if several else group,
                [point.units for point in points],
                [scale * getattr(point, value) for point in points],
                colour,
            )
            for colour, ((group, cores), points) in enumerate(sorted(lines_of.items()))
        ]
        units = [point.units for point in known]
        aims = [getattr(point, best) if best else 100.0 for point in known]
        drawn.append(curves(lines, title=title, x=unit, zero=True, ideal=Curve("ideal", units, aims)))
    return [figure for figure in drawn if figure]

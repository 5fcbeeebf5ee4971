"""Section of one run, built from its run folder."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from slipway.base.contract import CONFIG, GOODPUT, LOGS, METRICS, PROVENANCE, STATUS
from slipway.base.goodput import LIMIT, parse_goodput
from slipway.report.figures import Curve, curves, in_unit, timeline
from slipway.report.files.attempts import PastAttempt, is_alive, json_of, read_attempts, whole
from slipway.report.files.confusion import read_confusion, read_examples
from slipway.report.files.profile import read_profiles
from slipway.report.files.series import Metrics, Series, typical
from slipway.report.files.shares import SECONDS, Goodput, Shares, time_breakdown
from slipway.report.files.untrusted_folder import Folder
from slipway.report.html import render
from slipway.report.nested_tables import flat, read_config

RUN_FILES = (STATUS, METRICS, PROVENANCE, LOGS, CONFIG)
"""Files that identify a run folder; any one is enough."""
RATES = {"samples_per_second": "samples/s, all ranks", "steps_per_second": "optimizer steps/s"}
UNITS = {"loss": "loss", "accuracy": "accuracy (%)", "top5": "top-5 accuracy (%)", "lr": "learning rate"}
SHARES = {"accuracy", "top5"}
"""Metrics that the trainer records as fractions; those of user scripts may already be percentages."""


@dataclasses.dataclass
class RunSummary:
    """A run's section, and its values for tables and figures of several runs."""

    name: str
    anchor: str
    state: str
    reason: str = ""
    step: int = 0
    epoch: float | None = None
    accuracy: float | None = None
    """Best validation accuracy."""
    loss: float | None = None
    """Lowest validation loss."""
    seconds: float | None = None
    rate: float | None = None
    """Median samples/s over all ranks."""
    shares: Shares | None = None
    """Breakdown of the run's time."""
    steps_rate: float | None = None
    """Median optimizer steps/s, which a session records."""
    ranks: int | None = None
    device: str = ""
    """cpu or cuda, from run.json; "" if unknown."""
    devices: int = 1
    """GPUs per rank."""
    held: float | None = None
    """Total seconds of all attempts; None if one of them is unknown."""
    start_times: list[float] = dataclasses.field(default_factory=list)
    """Start times of the attempts, in seconds since 1970."""
    config: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    extremes: dict[tuple[str, str], tuple[float, float]] = dataclasses.field(default_factory=dict)
    """Lowest and highest value of each metric, by record kind and name."""
    validation: dict[str, Series] = dataclasses.field(default_factory=dict)
    """Validation loss and accuracy, for figures of several runs."""
    section: Markup = dataclasses.field(default_factory=Markup)


def is_run_folder(folder: Folder) -> bool:
    """Return whether a folder is a run folder."""
    return any(folder.has(name) for name in RUN_FILES)


def read_run(folder: Folder, *, name: str, anchor: str, images: bool) -> RunSummary:
    """Return the run in ``folder``; its section has the id ``anchor``, and images of confused samples if ``images``."""
    status, provenance = json_of(folder, STATUS), json_of(folder, PROVENANCE)
    alive = is_alive(folder)
    metrics = Metrics(folder, running=alive)
    attempts = read_attempts(folder, last_record=metrics.last_step)
    state, reason = _state(status, attempts, alive=alive)
    config, config_text = read_config(folder)
    if isinstance(auto := provenance.get("auto"), dict):
        config |= {key: f"{value} (auto)" for key, value in flat(auto).items() if config.get(key) == "auto"}
    confusion = read_confusion(folder)
    lines = list(metrics.series.values())
    launch = provenance["launch"] if isinstance(provenance.get("launch"), dict) else {}
    run = RunSummary(
        name=name,
        anchor=anchor,
        state=state,
        reason=reason,
        step=max(metrics.last_step, whole(status.get("step")) or 0),
        epoch=max((epoch for line in lines for epoch in line.epoch if math.isfinite(epoch)), default=None),
        seconds=max((seconds for line in lines for seconds in line.elapsed if math.isfinite(seconds)), default=None),
        accuracy=_best(metrics.get("validation", "accuracy"), highest=True),
        loss=_best(metrics.get("validation", "loss"), highest=False),
        rate=_typical(metrics.get("train", "samples_per_second")),
        steps_rate=_typical(metrics.get("train", "steps_per_second")),
        shares=time_breakdown(metrics),
        ranks=whole(provenance.get("world_size")),
        device=str(launch.get("device", "")),
        devices=whole(launch.get("devices_per_rank")) or 1,
        held=_held(attempts),
        start_times=[attempt.began for attempt in attempts if attempt.began],
        config=config,
        extremes=_extremes(metrics),
        validation={key: line for key in ("loss", "accuracy") if (line := metrics.get("validation", key))},
    )
    run.section = render(
        "run.html",
        run=run,
        folder=str(folder.path / folder.below),
        warnings=folder.warnings,
        figures=_figures(metrics, attempts),
        lines=[_row(line) for line in lines],
        confusion=confusion,
        examples=read_examples(folder) if confusion and images else "",
        attempts=attempts,
        timeline=timeline(attempts, now=time.time()),
        profiles=read_profiles(folder),
        goodput=Goodput(parse_goodput(folder.read_tail(GOODPUT, limit=LIMIT) or b"")),
        config=config,
        config_text="" if config else config_text,
        provenance=flat({key: value for key, value in provenance.items() if key != "variables"}),
        variables=flat(provenance["variables"]) if isinstance(provenance.get("variables"), dict) else {},
    )
    run.warnings = folder.warnings
    return run


def _state(status: dict[str, Any], attempts: list[PastAttempt], *, alive: bool) -> tuple[str, str]:
    """Return the run's state and reason: those of its last attempt if known, otherwise those of its status."""
    if attempts and attempts[-1].state != "unknown":
        return attempts[-1].state, attempts[-1].reason
    state = status.get("state")
    if state == "running" and not alive:
        return "crashed", ""
    known = state in {"done", "stopped", "failed", "running"}
    return (str(state), str(status.get("reason", ""))) if known else ("unknown", "")


def _held(attempts: list[PastAttempt]) -> float | None:
    spans = [attempt.ended - attempt.began for attempt in attempts if attempt.began and attempt.ended]
    return sum(spans) if spans and len(spans) == len(attempts) else None


def _best(line: Series | None, *, highest: bool) -> float | None:
    values = line.finite if line else []
    return (max if highest else min)(values) if values else None


def _extremes(metrics: Metrics) -> dict[tuple[str, str], tuple[float, float]]:
    return {key: (min(values), max(values)) for key, line in metrics.series.items() if (values := line.finite)}


def _typical(line: Series | None) -> float | None:
    return typical(line.value) if line else None


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row of the table of all metrics."""

    name: str
    records: int
    last: float
    lowest: float | None
    highest: float | None
    lowest_step: int | None
    highest_step: int | None


def _row(line: Series) -> _Row:
    values = [(value, int(step)) for value, step in zip(line.value, line.step, strict=True) if math.isfinite(value)]
    low, high = (min(values), max(values, key=lambda found: found[0])) if values else ((None, None), (None, None))
    return _Row(f"{line.kind} {line.name}", len(line.value), line.last, low[0], high[0], low[1], high[1])


def _figures(metrics: Metrics, attempts: list[PastAttempt]) -> list[Markup]:
    """Return the figures of a run: loss and accuracy over epochs and time, then all other metrics."""
    names: dict[str, list[Series]] = {}
    for line in metrics.series.values():
        if line.name not in SECONDS:
            names.setdefault(line.name, []).append(line)
    known = [*UNITS, "", *RATES]  # a script's other metrics go in between
    ordered = sorted(names, key=lambda name: known.index(name if name in known else ""))
    drawn = []
    for name in ordered:
        title = {**UNITS, **RATES}.get(name, name)
        lines = names[name]
        if name not in RATES:
            drawn.append(against_epoch(lines, title, zero=name == "lr", attempts=attempts))
        if name in RATES or name in {"loss", "accuracy"}:
            drawn.append(against_time(lines, title, zero=name in RATES, attempts=attempts))
    return [figure for figure in drawn if figure]


def against_epoch(
    lines: list[Series],
    title: str,
    labels: list[str] | None = None,
    *,
    zero: bool = False,
    attempts: Sequence[PastAttempt] = (),
) -> Markup:
    """Return a figure of ``lines`` over epochs, or over steps if a line has no epochs."""
    epochs = all(any(math.isfinite(epoch) for epoch in line.epoch) for line in lines)
    return curves(
        _curves(lines, labels, [line.epoch if epochs else line.step for line in lines]),
        title=title,
        x="epoch" if epochs else "optimizer step",
        zero=zero,
        late=lines[0].name in SHARES,
        attempts=attempts,
    )


def against_time(
    lines: list[Series],
    title: str,
    labels: list[str] | None = None,
    *,
    zero: bool = False,
    attempts: Sequence[PastAttempt] = (),
) -> Markup:
    """Return a figure of ``lines`` over training time."""
    longest = max((seconds for line in lines for seconds in line.elapsed if math.isfinite(seconds)), default=0.0)
    seconds, unit = in_unit(longest)
    return curves(
        _curves(lines, labels, [[elapsed / seconds for elapsed in line.elapsed] for line in lines]),
        title=title,
        x=f"training time ({unit})",
        zero=zero,
        late=lines[0].name in SHARES,
        attempts=attempts,
    )


def _curves(lines: list[Series], labels: list[str] | None, xs: Sequence[Sequence[float]]) -> list[Curve]:
    """Return a curve of each line against its x values, labelled with its kind without ``labels``."""
    names = labels or [line.kind for line in lines]
    return [
        Curve(name, across, _scaled(line), colour, line.step)
        for colour, (name, line, across) in enumerate(zip(names, lines, xs, strict=True))
    ]


def _scaled(line: Series) -> list[float]:
    """Return the values for a figure: fractions as percentages."""
    shares = line.name in SHARES and all(0 <= value <= 1 for value in line.finite)
    return [100 * value for value in line.value] if shares else list(line.value)

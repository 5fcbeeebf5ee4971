"""What several runs have in common, and in what they differ: a table that can be sorted, and common figures."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from slipway.report.html import render
from slipway.report.run_page import RunSummary, against_epoch, against_time

MOST_KEYS = 8
"""Columns for keys of the configuration in which runs differ."""
MOST_CURVES = 12
"""Runs whose curves are told apart in one figure."""


def differing(runs: Sequence[RunSummary]) -> list[str]:
    """Return the keys of the configurations in which ``runs`` that have one differ, in the order of the files."""
    configs = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({config.get(key) for config in configs}) > 1]


def overview(runs: Sequence[RunSummary]) -> Markup:
    """Return the section over ``runs``, of which there are two or more."""
    keys = differing(runs)
    return render(
        "overview.html",
        runs=runs,
        keys=keys[:MOST_KEYS],
        more=keys[MOST_KEYS:],
        figures=common_figures(runs) if len(runs) <= MOST_CURVES else [],
        most=MOST_CURVES,
    )


def common_figures(runs: Sequence[RunSummary], *, by_epoch: bool = True) -> list[Markup]:
    """Return validation loss and accuracy of ``runs`` against time, and against the epoch unless they are the same."""
    drawn = []
    for key, title in (("loss", "validation loss"), ("accuracy", "validation accuracy (%)")):
        shown = [(run.validation[key], run.name) for run in runs if key in run.validation]
        if shown:
            lines, names = [line for line, _ in shown], [name for _, name in shown]
            drawn += [against_epoch(lines, title, names)] if by_epoch else []
            drawn.append(against_time(lines, title, names))
    return [figure for figure in drawn if figure]

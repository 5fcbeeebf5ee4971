"""Overview of several runs: a sortable table with the options that differ, and common figures."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from slipway.report.html import render
from slipway.report.run_page import RunSummary, against_epoch, against_time

MAX_KEYS = 8
"""Maximum number of columns for configuration keys that differ."""
MAX_CURVES = 12
"""Maximum number of runs in one figure."""


def differing(runs: Sequence[RunSummary]) -> list[str]:
    """Return the configuration keys whose values differ between ``runs``, in file order; ignore runs without one."""
    configs = [run.config for run in runs if run.config]
    keys = dict.fromkeys(key for config in configs for key in config)
    return [key for key in keys if len({config.get(key) for config in configs}) > 1]


def overview(runs: Sequence[RunSummary]) -> Markup:
    """Return the overview section of two or more ``runs``."""
    keys = differing(runs)
    return render(
        "overview.html",
        runs=runs,
        keys=keys[:MAX_KEYS],
        more=keys[MAX_KEYS:],
        figures=common_figures(runs) if len(runs) <= MAX_CURVES else [],
        most=MAX_CURVES,
    )


def common_figures(runs: Sequence[RunSummary], *, by_epoch: bool = True) -> list[Markup]:
    """Return figures of the validation loss and accuracy of ``runs`` over time, and over epochs if ``by_epoch``."""
    drawn = []
    for key, title in (("loss", "validation loss"), ("accuracy", "validation accuracy (%)")):
        shown = [(run.validation[key], run.name) for run in runs if key in run.validation]
        if shown:
            lines, names = [line for line, _ in shown], [name for _, name in shown]
            drawn += [against_epoch(lines, title, names)] if by_epoch else []
            drawn.append(against_time(lines, title, names))
    return [figure for figure in drawn if figure]

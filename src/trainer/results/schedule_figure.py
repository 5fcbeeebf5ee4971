"""Figure of a pipeline schedule: which stage works on which micro-batch, and when."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from trainer.parallel.stages.schedule import Timed, by_stage, simulate

COLOURS = {"F": "tab:blue", "B": "tab:orange"}
MIN_LABELED_WIDTH = 0.012
"""Minimum width of a bar that has room for its number, as a fraction of the axis."""


def draw_schedule(measured: Sequence[Timed], devices: Sequence[str], path: Path, *, title: str) -> None:
    """Draw the ``measured`` passes of one optimizer step, and above them the same passes on one device per stage.

    Args:
        measured: passes with times in seconds, in the order of issue.
        devices: the device name of each stage.
        path: the PNG file to write.
        title: the figure's title.
    """
    stages = len(devices)
    medians = {
        (stage, kind): statistics.median_low(  # not the mean: the first pass is slow
            end - start for unit, start, end in measured if unit.stage == stage and unit.kind == kind
        )
        for stage in range(stages)
        for kind in COLOURS
    }
    orders = by_stage([unit for unit, _, _ in measured], stages)
    planned = simulate(orders, lambda unit: medians[unit.stage, unit.kind])
    figure = Figure(figsize=(12, 2.6 + 0.8 * stages), layout="constrained")
    figure.suptitle(title)
    upper, lower = figure.subplots(2, 1, sharex=True)
    width = max(end for _, _, end in [*planned, *measured])
    _draw(
        upper,
        planned,
        devices,
        width=width,
        what="simulated, each stage on a separate device, at the median time of its passes",
    )
    note = ", sequentially on one device" if len(set(devices)) == 1 else ""
    _draw(lower, measured, devices, width=width, what=f"measured in one step{note}")
    lower.set_xlim(0, 1e3 * width)
    lower.set_xlabel("time since the step began (ms)")
    legend = [Patch(color=COLOURS["F"], label="forward"), Patch(color=COLOURS["B"], label="backward")]
    figure.legend(handles=legend, loc="outside upper right", ncols=2)
    figure.savefig(path, dpi=120)


def _draw(axis: Axes, timed: Sequence[Timed], devices: Sequence[str], *, width: float, what: str) -> None:
    total = max(end for _, _, end in timed)
    for unit, start, end in timed:
        axis.barh(
            unit.stage, 1e3 * (end - start), left=1e3 * start, height=0.8, color=COLOURS[unit.kind], edgecolor="white"
        )
        if end - start > MIN_LABELED_WIDTH * width:
            middle = 1e3 * (start + end) / 2
            axis.text(
                middle, unit.stage, str(unit.micro + 1), ha="center", va="center", color="white", fontsize="small"
            )
    idle = 1 - sum(end - start for _, start, end in timed) / (len(devices) * total)
    axis.set_title(f"{what}: {1e3 * total:.1f} ms, stages idle {100 * idle:.0f} % of it", fontsize=10, loc="left")
    axis.set_yticks(range(len(devices)), [f"stage {stage}, {device}" for stage, device in enumerate(devices)])
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)

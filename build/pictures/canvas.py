"""Boxes, arrows and notes on a canvas in pixels, written as SVG with text that can be searched and selected."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

BLUE, ORANGE, GREEN, RED, GRAY = "#2a6fbb", "#d9730d", "#2f8f5b", "#c0392b", "#5b6570"
PALE = {BLUE: "#e6f0fb", ORANGE: "#fdf0e3", GREEN: "#e6f5ec", RED: "#fbe9e7", GRAY: "#f1f3f5"}
STYLE = {"svg.fonttype": "none", "svg.hashsalt": "slipway", "font.family": "sans-serif", "font.size": 11}
"""Text stays text; the hash salt makes the file the same on each run."""


class Canvas:
    """A figure whose unit is the pixel, with the origin at the upper left corner."""

    def __init__(self, width: int, height: int) -> None:
        """Make an empty white figure of ``width`` by ``height`` pixels."""
        self.figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor="white")
        self.axis = self.figure.add_axes((0, 0, 1, 1))
        self.axis.set(xlim=(0, width), ylim=(height, 0))
        self.axis.set_axis_off()

    def box(
        self,
        left: float,
        top: float,
        width: float,
        height: float,
        title: str,
        *,
        text: str = "",
        colour: str = GRAY,
    ) -> None:
        """Draw a rounded box with a bold title and, below it, lines of text."""
        style = "round,pad=0,rounding_size=6"
        self.axis.add_patch(
            FancyBboxPatch((left, top), width, height, boxstyle=style, facecolor=PALE[colour], edgecolor=colour)
        )
        middle = left + width / 2
        if not text:
            self.note(middle, top + height / 2, title, weight="bold")
            return
        lines = text.count("\n") + 1
        first = top + height / 2 - 8 * lines
        self.note(middle, first, title, weight="bold")
        self.note(middle, first + 8 + 8.5 * lines, text, size=9.5, colour=GRAY)

    def note(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 11,
        weight: str = "normal",
        colour: str = "black",
        align: str = "center",
    ) -> None:
        """Write ``text`` with its middle at ``y``."""
        self.axis.text(x, y, text, ha=align, va="center", fontsize=size, fontweight=weight, color=colour)

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        *,
        colour: str = GRAY,
        bend: float = 0.0,
    ) -> None:
        """Draw an arrow; ``bend`` is the height of its arc divided by its length."""
        style = f"arc3,rad={bend}"
        self.axis.add_patch(
            FancyArrowPatch(
                start,
                end,
                arrowstyle="-|>",
                mutation_scale=13,
                color=colour,
                connectionstyle=style,
                shrinkA=2,
                shrinkB=2,
            )
        )

    def bar(self, left: float, top: float, width: float, height: float, text: str, *, colour: str) -> None:
        """Draw a bar of a time line with its text inside."""
        self.axis.add_patch(
            FancyBboxPatch(
                (left, top), width, height, boxstyle="square,pad=0", facecolor=PALE[colour], edgecolor=colour
            )
        )
        self.note(left + width / 2, top + height / 2, text, size=9.5)

    def save(self, path: Path) -> None:
        """Write the figure as SVG."""
        with mpl.rc_context(STYLE):
            self.figure.savefig(path, metadata={"Date": None, "Creator": None})

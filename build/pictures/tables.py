"""Figures of tables that pages hold: which image runs on which GPU and driver, and seconds to recover."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl
from canvas import BLUE, GRAY, GREEN, ORANGE, PALE, RED, STYLE, Canvas
from matplotlib.figure import Figure

IMAGE_COLOURS = {"`cuda`": GREEN, "`cuda12`": BLUE, "none": GRAY}
PEER_COLOURS = (BLUE, ORANGE, GRAY)


def rows_of(page: Path, first: str) -> list[list[str]]:
    """Return the cells of the table of ``page`` whose header begins with ``first``, without the rule below it."""
    lines = iter(page.read_text(encoding="utf-8").splitlines())
    table = [next(line for line in lines if line.startswith(f"| {first} "))]
    for line in lines:
        if not line.startswith("|"):
            break
        table.append(line)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in (table[0], *table[2:])]


def which_image(page: Path, path: Path) -> None:
    """Draw the table of drivers and GPUs as a grid of colours."""
    head, *rows = rows_of(page, "driver (CUDA)")
    width, height = 170, 44
    canvas = Canvas(130 + width * (len(head) - 1) + 10, 50 + height * len(rows) + 10)
    canvas.note(10, 25, f"{head[0]}:", size=10, align="left")
    for column, name in enumerate(head[1:]):
        canvas.note(130 + width * (column + 0.5), 25, name.replace(", ", "\n", 1), size=9.5, weight="bold")
    for row, (driver, *cells) in enumerate(rows):
        top = 50 + height * row
        canvas.note(10, top + height / 2, driver, size=10, weight="bold", align="left")
        for column, cell in enumerate(cells):
            colour = IMAGE_COLOURS.get(cell, ORANGE)
            text = cell.strip("`")
            canvas.bar(130 + width * column + 2, top + 2, width - 4, height - 4, text, colour=colour)
    canvas.save(path)


def recovery(page: Path, path: Path) -> None:
    """Draw the seconds until training continues after each kind of kill, as bars; runs that hang are marked."""
    head, *rows = rows_of(page, "killed | `slipway`")
    figure = Figure(figsize=(9, 4.2), layout="constrained", facecolor="white")
    axis = figure.subplots()
    for peer, name in enumerate(head[1:]):
        for row, cells in enumerate(rows):
            position = row + 0.27 * (peer - 1)
            cell = cells[1 + peer]
            seconds = re.search(r"(\d+) s", cell)
            recovered = not cell.startswith("0 of")
            length = int(seconds[1]) if seconds and recovered else 0
            axis.barh(position, length, 0.24, color=PALE[PEER_COLOURS[peer]], edgecolor=PEER_COLOURS[peer],
                      label=name.replace("`", "") if row == 0 else None)  # fmt: skip
            note = cell.partition(", ")[2]
            colour = "black" if recovered else RED
            axis.text(length + 1, position, f" {note}", va="center", fontsize=8.5, color=colour)
    axis.set_yticks(range(len(rows)), [cells[0] for cells in rows])
    axis.invert_yaxis()
    axis.set(xlabel="seconds from the kill until the ranks train again (median of two kills)", ylabel="killed")
    axis.set_xlim(0, 1.15 * max(int(text) for cells in rows for cell in cells for text in re.findall(r"(\d+) s", cell)))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="upper right", fontsize=9)
    with mpl.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None, "Creator": None})

"""Draw the figures of the documentation: `python build/pictures [NAME ...]`, by default all.

The diagrams are the same on each run. The others show real runs, on two ranks of this machine's CPUs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path

import diagrams
import runs
import tables
import terminal

DOCS = Path(__file__).resolve().parents[2] / "docs"
DIAGRAMS: dict[str, Callable[[Path], None]] = {
    "overview.svg": diagrams.overview,
    "job.svg": diagrams.life_of_a_job,
    "time-limit.svg": diagrams.time_limit,
    "which-image.svg": partial(tables.which_image, DOCS / "howto" / "which-image.md"),
    "recovery.svg": partial(tables.recovery, DOCS / "explanation" / "restarts.md"),
}
RUNS: dict[str, Callable[[Path], None]] = {
    "curves.png": runs.curves,
    "schedule.png": runs.schedule,
    "report.png": runs.report,
    "restart.svg": terminal.restart,
}


def main() -> None:
    """Draw the named figures into docs/figures."""
    parser = argparse.ArgumentParser(prog="build/pictures", description="Draw the figures of the documentation.")
    parser.add_argument("name", nargs="*", help=f"default: all of {', '.join(DIAGRAMS | RUNS)}")
    parser.add_argument("--output", type=Path, default=DOCS / "figures", metavar="FOLDER")
    arguments = parser.parse_args()
    figures = DIAGRAMS | RUNS
    if unknown := set(arguments.name) - figures.keys():
        parser.error(f"no figure {', '.join(sorted(unknown))}; available: {', '.join(figures)}")
    for name in arguments.name or figures:
        print(f"figures: {name}", flush=True)
        figures[name](arguments.output / name)


if __name__ == "__main__":
    main()

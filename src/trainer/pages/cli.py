"""``trainer report PATH...``: read folders, write one page, say what could not be read."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from slipway.errors import one_line
from slipway.files import write_atomically
from slipway.layout import EXIT_USAGE
from slipway.reading import read_start
from trainer.pages.folder import Folder
from trainer.pages.overview import overview
from trainer.pages.render import HEAD, page, render
from trainer.pages.run import Run, holds_run, read_run

PROGRAM = "trainer report"


def main(argv: Sequence[str]) -> int:
    """Write the page that ``argv`` asks for; return 0, 1 if there is nothing to report, or 2 for a wrong argument."""
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Write one HTML page about runs: learning curves, confusion matrix, attempts, configuration. It "
        "holds all it shows, and opens without a network. Runs may still be under way.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="run folder")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="the page (default: report.html in the current folder; a page of an earlier call is replaced)",
    )
    arguments = parser.parse_args(argv)
    if refusal := _refusal(arguments.output):
        _say(f"--output {arguments.output}: {refusal}")
        return EXIT_USAGE
    runs = read_runs(arguments.paths)
    if not runs:
        _say("nothing to report: name run folders (docs/contract.md lists what is in them)")
        return 1
    try:
        write_atomically(arguments.output, compose(runs))
    except OSError as error:
        _say(f"cannot write {arguments.output}: {error.strerror}")
        return 1
    print(arguments.output)
    return 0


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """Return the runs in ``paths``, in order; what cannot be read of them is said on stderr."""
    runs: list[Run] = []
    names = _names(paths)
    for path, name in zip(paths, names, strict=True):
        folder = Folder(path)
        if not path.is_dir():
            _say(f"{path}: no folder")
            continue
        if not holds_run(folder):
            _say(f"{path}: no run: it has none of the files of a run folder")
            continue
        run = read_run(folder, name=name, anchor=f"run-{len(runs) + 1}")
        for warning in run.warnings:
            _say(f"{path}: {warning}")
        runs.append(run)
    return runs


def compose(runs: Sequence[Run]) -> str:
    """Return the page about ``runs``."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    parts = [overview(runs)] if len(runs) > 1 else []
    return page(title, render("body.html", title=title, parts=[*parts, *(run.section for run in runs)]))


def _names(paths: Sequence[Path]) -> list[str]:
    """Return for each path the shortest end of it that no other one has: /data/a/run and /data/b/run are two runs."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]  # noqa: PTH100 -- a link keeps its name
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return list(map(str, paths))


def _refusal(output: Path) -> str:
    """Return why the page may not be written over what is at ``output``; "" if it may."""
    try:
        mode = output.lstat().st_mode
    except OSError:
        return ""
    if not stat.S_ISREG(mode):
        return "there is something else than a file"
    try:
        start = read_start(output, limit=len(HEAD))
    except OSError as error:
        return error.strerror or "not readable"
    return "" if start in (b"", HEAD.encode()) else "the file there is no page of an earlier call: remove it"


def _say(text: str) -> None:
    print(f"{PROGRAM}: {one_line(text)}", file=sys.stderr)

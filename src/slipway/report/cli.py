"""Command line of ``trainer report PATH...``: read folders, write one page, warn about unreadable parts."""

from __future__ import annotations

import argparse
import dataclasses
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

from slipway.base.bounded_read import read_head
from slipway.base.errors import SlipwayError, add_label, error_line
from slipway.base.files import write_atomically
from slipway.base.parser import Parser
from slipway.report.files.untrusted_folder import Folder
from slipway.report.html import HEAD, page, render
from slipway.report.overview import overview
from slipway.report.run_list import RunSet
from slipway.report.run_page import RunSummary, is_run_folder, read_run
from slipway.report.study import FILE as STUDY
from slipway.report.study import read_study
from slipway.report.sweep import FILE as SWEEP
from slipway.report.sweep import read_sweep

PROGRAM = "trainer report"
MAX_RUNS_WITH_IMAGES = 12
"""Maximum number of paths for which the page contains images of confused samples, about 100 kB per run."""


def main(argv: Sequence[str]) -> int:
    """Write the page that ``argv`` describes; return 0 or the exit code of the error."""
    arguments = parser().parse_args(argv)
    if refusal := _refusal(arguments.output):
        return _fail("bad-flag-value", f"--output {arguments.output}: {refusal}")
    parts = read(arguments.paths)
    if not parts.runs and not parts.sets:
        return _fail(
            "no-such-run", "nothing to report: pass run folders (docs/reference/run-folder.md lists their files)"
        )
    try:
        write_atomically(arguments.output, compose(parts))
    except OSError as error:
        return _fail("cannot-write", f"cannot write {arguments.output}: {error.strerror}")
    print(arguments.output.absolute())
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command = Parser(
        prog=PROGRAM,
        description="Write one HTML page about runs: learning curves, confusion matrix, attempts, configuration. The "
        "page is self-contained and needs no network. Runs may still be active.",
    )
    command.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="folder of a run, a study or a sweep")
    command.add_argument(
        "--output",
        type=Path,
        default=Path("report.html"),
        metavar="FILE",
        help="output file (default: report.html in the current folder); replaces an earlier report",
    )
    return command


@dataclasses.dataclass
class Parts:
    """The contents of the page."""

    runs: list[RunSummary] = dataclasses.field(default_factory=list)
    sets: list[RunSet] = dataclasses.field(default_factory=list)
    names: list[str] = dataclasses.field(default_factory=list)

    @property
    def next_run(self) -> int:
        """The number of the next run's section."""
        return 1 + len(self.runs) + sum(len(found.runs) for found in self.sets)


def read(paths: Sequence[Path]) -> Parts:
    """Return the runs, studies and sweeps in ``paths``, in order; print warnings about unreadable parts to stderr."""
    parts = Parts()
    for path, name in zip(paths, _names(paths), strict=True):
        folder = Folder(path)
        try:
            next(path.iterdir(), None)
        except OSError as error:
            _say(add_label("warning", "cannot-read", f"{path}: {error.strerror}"))
            continue
        found: RunSummary | RunSet
        if folder.has(STUDY):
            found = read_study(folder, name=name, first=parts.next_run)
            parts.sets.append(found)
        elif folder.has(SWEEP):
            found = read_sweep(folder, name=name, first=parts.next_run)
            parts.sets.append(found)
        elif is_run_folder(folder):
            found = read_run(
                folder, name=name, anchor=f"run-{parts.next_run}", images=len(paths) <= MAX_RUNS_WITH_IMAGES
            )
            parts.runs.append(found)
        else:
            _say(add_label("warning", "no-such-run", f"{path}: not a run: it has none of a run folder's files"))
            continue
        parts.names.append(name)
        for warning in found.warnings:
            _say(add_label("warning", "left-out", f"{path}: {warning}"))
    return parts


def compose(parts: Parts) -> str:
    """Return the page: an overview of the runs, each run, then studies and sweeps, each with its runs."""
    title = parts.names[0] if len(parts.names) == 1 else f"{parts.next_run - 1} runs"
    sections = [overview(parts.runs)] if len(parts.runs) > 1 else []
    sections += [run.section for run in parts.runs]
    for found in parts.sets:
        sections += [found.section, *(run.section for run in found.runs)]
    return page(title, render("body.html", title=title, parts=sections))


def _names(paths: Sequence[Path]) -> list[str]:
    """Return names for the paths: their last parts, as many as make names unique ("a/run" for /data/a/run)."""
    parts = [Path(os.path.abspath(path)).parts for path in paths]  # noqa: PTH100 -- links keep their names
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return list(map(str, paths))


def _refusal(output: Path) -> str:
    """Return the reason why the page must not replace ``output``; "" if it may."""
    try:
        mode = output.lstat().st_mode
    except OSError:
        return ""
    if not stat.S_ISREG(mode):
        return "the path exists and is not a regular file"
    try:
        start = read_head(output, limit=len(HEAD))
    except OSError as error:
        return error.strerror or "not readable"
    return "" if start in (b"", HEAD.encode()) else "the existing file is not an earlier report: remove it"


def _fail(slug: str, text: str) -> int:
    """Print an error and return its exit code."""
    error = SlipwayError(slug, text)
    _say(error_line(error))
    return error.exit_code


def _say(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr)

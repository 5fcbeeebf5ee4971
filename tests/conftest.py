"""Tables that tests print at the end of the run, and CI's ban on skips."""

import os
from collections.abc import Callable, Sequence

import pytest

TABLES = pytest.StashKey[list[str]]()


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Callable[[str, Sequence[Sequence[object]]], None]:
    """Return a function that shows a title and rows in the summary of the test run."""

    def show(title: str, rows: Sequence[Sequence[object]]) -> None:
        cells = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
        request.config.stash.setdefault(TABLES, []).append("\n".join([title, *lines]))

    return show


def pytest_terminal_summary(terminalreporter, config):
    for text in config.stash.get(TABLES, []):
        terminalreporter.write_line(f"\n{text}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """Turn a skip into a failure where CI forbids skips: a tool that is missing there is a fault of the set-up."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("SLIPWAY_FORBID_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and SLIPWAY_FORBID_SKIPS is set: {report.longrepr}"

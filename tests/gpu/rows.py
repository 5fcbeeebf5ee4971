"""A pytest plugin: append each test's result to the file MAKE_GPU_ROWS as the test ends, as one JSON line.

`make gpu` reads that file, so a run that is stopped keeps the results of all tests that have ended.
"""

import json
import os
from pathlib import Path


def pytest_runtest_logreport(report):
    """Append the result of a test's call, or of a set-up or tear-down that did not pass; also under xdist."""
    if report.when != "call" and report.passed:
        return
    if "PYTEST_XDIST_WORKER" in os.environ:  # its controller gets the report too
        return
    row = {
        "row": report.nodeid.rpartition("/")[2],
        "result": report.outcome,
        "seconds": round(report.duration, 2),
        "values": {name: value for name, value in report.user_properties if name != "table"},
        "why": _last_line(report) if report.failed else "",
    }
    with Path(os.environ["MAKE_GPU_ROWS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _last_line(report) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return text.strip().partition("\n")[0][:300]

"""A pytest plugin: append each test's result to the file MAKE_GPU_ROWS as the test ends, as one JSON line.

`make gpu` reads that file, so a run that is stopped keeps the results of all tests that have ended.
"""

import ast
import json
import os
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pytest_ignore_collect(collection_path):
    """Leave out a file whose imports this Python lacks, and say so in its row; None leaves it to others."""
    if collection_path.suffix != ".py" or not (missing := _missing(collection_path)):
        return None
    append({"row": collection_path.name, "result": "left out", "seconds": 0.0, "values": {}, "why": f"no {missing}"})
    return True


def _missing(path: Path) -> str:
    """Return the first module of others that a file imports, itself or by modules of ours, and that is not there."""
    bench = {file.stem for file in (ROOT / "bench").glob("*.py")}  # which a test adds to sys.path itself
    names = sorted({name.partition(".")[0] for name in _imports(path, set())} - bench - {"slipway", "trainer"})
    return next((name for name in names if _is_missing(name)), "")


def _imports(path: Path, read: set[Path]) -> set[str]:
    """Return the modules that a file imports as it is loaded, and those that modules of src import for it."""
    read.add(path)
    nodes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if not isinstance(node, ast.If)]
    found = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for name in [*found]:
        parts = (ROOT / "src").joinpath(*name.split("."))
        for file in (parts.with_suffix(".py"), parts / "__init__.py"):
            if file.is_file() and file not in read:
                found |= _imports(file, read)
    return found


def _is_missing(name: str) -> bool:
    spec = find_spec(name)
    return spec is None or spec.origin is None  # a folder of that name, as tests/distributed


def append(row) -> None:
    """Append a row; several workers may write the same one."""
    with Path(os.environ["MAKE_GPU_ROWS"]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


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
    append(row)


def _last_line(report) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return text.strip().partition("\n")[0][:300]

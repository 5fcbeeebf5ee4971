"""Pytest plugin that records the duration of each test and the lines of src/ and jobscripts/lib that it reaches.

`python build/reached.py FOLDER TEST...` runs the TESTs with the plugin and writes FOLDER/reached.json. coverage.py
traces Python, also in the processes that a test starts. Bash traces itself; BASH_ENV enables this in a test's
processes.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import coverage
import pytest

ROOT = Path(__file__).resolve().parents[1]
LIB = ROOT / "jobscripts" / "lib"
FOLDER = "SLIPWAY_REACHED"
HANDED = ("BASH_ENV", "COVERAGE_PROCESS_CONFIG")
TRACE = "exec {BASH_XTRACEFD}>>'%s'\nPS4=$'\\x01${BASH_SOURCE-}:${LINENO} '\nset -x\n"
LINE = re.compile(rb"^\x01+[^\n:]*?([\w.-]+\.(?:bash|sh)):(\d+) (.*)", re.MULTILINE)
CONFIG = """
[run]
parallel = true
source = {root}/src,{root}/jobscripts/lib
patch = subprocess, _exit
data_file = {folder}/coverage/data
disable_warnings = no-data-collected,module-not-imported,couldnt-parse
[paths]
lib =
    {root}/jobscripts/lib
    */lib
"""


def append(path: Path, entry: dict) -> None:
    """Append a JSON line in one write, because several processes append."""
    with path.open("a") as stream:
        stream.write(json.dumps(entry) + "\n")


def lines_of_trace(path: Path) -> dict[str, list[int]]:
    """Return the traced lines of each file in jobscripts/lib; line 0 stands for a file that a command started."""
    found: dict[str, set[int]] = defaultdict(set)
    names = {file.name for file in LIB.iterdir()}
    if path.exists():
        for name, line, command in set(LINE.findall(path.read_bytes())):
            if name.decode() in names:
                found[name.decode()].add(int(line))
            for started in re.findall(rb"[\w-]+\.(?:py|sh)\b", command):
                if started.decode() in names:
                    found[started.decode()].add(0)
    return {f"jobscripts/lib/{name}": sorted(lines) for name, lines in found.items()}


def pytest_configure() -> None:
    """Disable the fork server, and pass the trace variables to programs that get an explicit environment."""
    import support  # noqa: PLC0415 -- pytest has put tests/ on the path by now

    os.environ.pop("PYTHONPATH", None)  # it located this plugin; the tests run without it
    support.FORKS = False
    plain = subprocess.Popen.__init__

    def start(popen: subprocess.Popen, *words: Any, env: Mapping | None = None, **options: Any) -> None:
        if env is not None:
            env = {name: os.environ[name] for name in HANDED if name in os.environ} | dict(env)
        plain(popen, *words, env=env, **options)

    subprocess.Popen.__init__ = start


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the lines that a test reaches under its name."""
    measured = coverage.Coverage.current()
    if measured is None:  # xdist's controller
        yield
        return
    measured.switch_context(item.nodeid)
    measured.config.context = item.nodeid
    os.environ["COVERAGE_PROCESS_CONFIG"] = measured.config.serialize()
    folder = Path(os.environ[FOLDER])
    descriptor, name = tempfile.mkstemp(dir=folder / "bash")
    os.close(descriptor)
    trace = Path(name + ".trace")
    Path(name).write_text(TRACE % trace)
    os.environ["BASH_ENV"] = name
    yield
    measured.switch_context("")
    entry = {"test": item.nodeid, "lines": lines_of_trace(trace)}
    trace.unlink(missing_ok=True)
    append(folder / "bash.jsonl", entry)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Record duration and outcome of each test, in xdist's controller."""
    if FOLDER in os.environ and "PYTEST_XDIST_WORKER" not in os.environ:
        entry = {"test": report.nodeid, "seconds": report.duration, "passed": report.outcome == "passed"}
        append(Path(os.environ[FOLDER]) / "tests.jsonl", entry)


def collect(folder: Path) -> None:
    """Write FOLDER/reached.json from the records of the tests that passed.

    {"tests": [name, ...], "seconds": [s, ...], "lines": {file: {line: [index of a test, ...]}}}
    """
    seconds: dict[str, float] = defaultdict(float)
    failed = set()
    for line in (folder / "tests.jsonl").read_text().splitlines():
        entry = json.loads(line)
        seconds[entry["test"]] += entry["seconds"]
        if not entry["passed"]:
            failed.add(entry["test"])
    names = sorted(seconds.keys() - failed)
    index = {name: number for number, name in enumerate(names)}
    lines: dict[str, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for line in (folder / "bash.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for path, reached in entry["lines"].items():
            for number in reached:
                lines[path][number] |= {index[name] for name in [entry["test"]] if name in index}
    data = coverage.CoverageData(str(folder / "coverage" / "data"))
    data.read()
    for name in data.measured_files():
        path = Path(name)
        if path.is_relative_to(ROOT):
            for number, tests in data.contexts_by_lineno(name).items():
                parts = {part for test in tests for part in (test, test.partition("|")[0])}
                lines[str(path.relative_to(ROOT))][number] |= {index[part] for part in parts if part in index}
    kept = {path: {line: sorted(tests) for line, tests in found.items()} for path, found in lines.items()}
    found = {"tests": names, "seconds": [seconds[name] for name in names], "lines": kept}
    (folder / "reached.json").write_text(json.dumps(found))


def main() -> int:
    """Run the tests, collect their records and return pytest's exit code."""
    folder, tests = Path(sys.argv[1]).resolve(), sys.argv[2:]
    for name in ("bash", "coverage"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "coveragerc").write_text(CONFIG.format(root=ROOT, folder=folder))
    env = os.environ | {FOLDER: str(folder), "PYTHONPATH": str(ROOT / "build")}
    measure = [sys.executable, "-m", "coverage"]
    rules = f"--rcfile={folder}/coveragerc"
    pytest_words = ["-m", "pytest", "-p", "reached", "-q", "-n", "logical", "--dist", "loadfile"]
    code = subprocess.run([*measure, "run", rules, *pytest_words, *tests], cwd=ROOT, env=env, check=False).returncode
    subprocess.run([*measure, "combine", "--quiet", rules], cwd=ROOT, env=env, check=True)
    collect(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())

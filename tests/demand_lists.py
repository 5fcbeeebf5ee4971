"""The demands of the five tutorials (tests/demands/NAME.toml): their evidence, and the changes that break them."""

import re
import tomllib

from readme import DRY_RUNS, ELSEWHERE, NOWHERE, ON_CLUSTER, ON_NODE, ROOT

LISTS = sorted((ROOT / "tests" / "demands").glob("*.toml"))
STATES = ("shown", "refused", "not shown")
LONG = ("tests/cluster/", "tests/image/")
"""Folders of tests that need Slurm, the image or root."""


def demands_of(path):
    """Return the rows of a list, in the tutorial's order."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["demand"]


def changes():
    """Return the change of each row that has one, by the row's name: LIST-NUMBER."""
    rows = [(f"{path.stem}-{number}", row) for path in LISTS for number, row in enumerate(demands_of(path), start=1)]
    return {name: row["change"] for name, row in rows if "change" in row}


def apply(text, change):
    """Return the file's text with the change."""
    assert text.count(change["old"]) == 1, f"{change['file']} has {change['old']!r} {text.count(change['old'])} times"
    return text.replace(change["old"], change["new"])


def runner_of(command):
    """Return the file of the test that runs a command of the documents; None if no test runs it."""
    if command in NOWHERE:
        return None
    if command in ELSEWHERE:
        return ELSEWHERE[command][0]
    if command in DRY_RUNS:
        return "tests/unit/test_documented_runs.py"
    on_cluster = command in ON_CLUSTER or command in ON_NODE
    return "tests/cluster/test_readme.py" if on_cluster else "tests/docs/test_commands.py"


def is_long(test):
    """Return whether only `make prove`, or a machine with Slurm or the image, runs a test."""
    path, _, name = test.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    method = re.escape(name.rpartition("::")[2])
    marked = re.search(r"(?m)^pytestmark = .*\bmark\.prove\b", text)
    decorated = re.search(rf"(?m)^ *@pytest\.mark\.prove\n(?: *@.*\n)* *def {method}\(", text)
    return path.startswith(LONG) or bool(marked or decorated)


def evidence_of(row):
    """Return what shows a row: "quick" tests among others, or "command" or "long" tests alone."""
    if not row["tests"]:
        return "command"
    shows = [row["change"]["fails"].partition("[")[0]] if "change" in row else row["tests"]
    return "long" if all(is_long(test) for test in shows) else "quick"

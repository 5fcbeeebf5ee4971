"""The lists of demands (tests/demands): the evidence of each row exists, and its change can be made."""

import ast
import difflib
import re
from functools import cache

import pytest

from demand_lists import LISTS, STATES, apply, demands_of, evidence_of, is_long, runner_of
from readme import COMMANDS, ROOT

TUTORIALS = ROOT / "docs" / "tutorials"


@cache
def functions_of(path):
    """Return the functions of a test file: NAME, or CLASS::NAME."""
    found = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return found


def exists(evidence):
    path, _, name = evidence.partition("::")
    if name:
        return (ROOT / path).is_file() and name in functions_of(path)
    return evidence in COMMANDS


def changed_lines(text, change):
    """Return how many lines of a file differ with a change: a replaced line counts once."""
    before, after = text.splitlines(), apply(text, change).splitlines()
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in blocks if tag != "equal")


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_demand_has_existing_evidence_or_a_reason(path):
    for row in demands_of(path):
        assert row["state"] in STATES, row
        if row["state"] == "shown":
            assert {*row} <= {"text", "state", "tests", "commands", "change"}, row
            assert row["tests"] + row["commands"], f"{row['text']}: names no evidence"
            assert [name for name in row["tests"] + row["commands"] if not exists(name)] == [], row["text"]
            assert all("::" in name for name in row["tests"]), row["text"]
        else:
            assert {*row} == {"text", "state", "reason"}, row
            assert len(row["reason"]) > 20, f"{row['text']}: gives no reason"


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_change_of_each_demand_can_be_made_and_names_its_evidence(path):
    for change, row in [(row["change"], row) for row in demands_of(path) if "change" in row]:
        assert {*change} == {"file", "old", "new", "fails"}, row["text"]
        assert not change["file"].startswith("tests/"), row["text"]
        assert changed_lines((ROOT / change["file"]).read_text(encoding="utf-8"), change) == 1, row["text"]
        fails = change["fails"].partition("[")[0]
        assert exists(fails), f"{row['text']}: {fails}"
        files = [runner_of(command) for command in row["commands"]]
        assert fails in row["tests"] or fails.partition("::")[0] in files, row["text"]


@pytest.mark.parametrize("path", LISTS, ids=lambda path: path.stem)
def test_each_demand_that_is_shown_has_a_change(path):
    left = [row["text"] for row in demands_of(path) if row["state"] == "shown" and "change" not in row]
    assert left == []


def test_tutorial_index_counts_match_demand_lists():
    counts = {}
    for path in LISTS:
        rows = demands_of(path)
        alone = [evidence_of(row) for row in rows if row["state"] == "shown"]
        states = [sum(row["state"] == state for row in rows) for state in STATES]
        counts[path.stem] = [len(rows), *states, alone.count("command"), alone.count("long")]
    index = (TUTORIALS / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"(?m)^\| ([\w-]+) " + r"\| (\d+) " * 6 + r"\|$", index)
    assert {name: [*map(int, numbers)] for name, *numbers in shown} == counts
    assert {page.stem for page in TUTORIALS.glob("[!R]*.md")} == {*counts}


def test_missing_evidence_is_detected():
    assert exists("tests/unit/test_tutorial_demands.py::test_missing_evidence_is_detected")
    assert exists("make train")
    assert not exists("tests/unit/test_tutorial_demands.py::test_gone")
    assert not exists("tests/unit/test_gone.py::test_gone")
    assert not exists("make coffee")


def test_long_tests_are_told_from_quick_ones():
    assert is_long("tests/cluster/test_jobs.py::test_every_script_trains_reference_weights")
    assert is_long("tests/demands/test_changes.py::test_change_breaks_demand")
    assert not is_long("tests/unit/test_tutorial_demands.py::test_missing_evidence_is_detected")


def test_change_of_several_lines_is_detected():
    text = "one\ntwo\nthree\n"
    assert changed_lines(text, {"file": "x", "old": "two", "new": "2"}) == 1
    assert changed_lines(text, {"file": "x", "old": "two\n", "new": ""}) == 1
    assert changed_lines(text, {"file": "x", "old": "two\nthree", "new": "2\n3"}) == 2
    assert changed_lines(text, {"file": "x", "old": "two", "new": "two"}) == 0

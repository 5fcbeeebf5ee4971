"""The demands of the five tutorials (docs/tutorials/demands): each names a test or command that exists."""

import ast
import re
from functools import cache

import pytest

from readme import COMMANDS, ROOT

TUTORIALS = ROOT / "docs" / "tutorials"
LISTS = sorted((TUTORIALS / "demands").glob("*.md"))
ROW = re.compile(r"(?m)^\| (.+?) \| (shown|refused) \| (.+?) \|$")
SPAN = re.compile(r"`([^`]+)`")


def demands_of(page):
    """Return (demand, state, evidence) of each row; raise an error if a row has another shape."""
    text = page.read_text(encoding="utf-8")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    rows = [line for line in tables if not re.match(r"\| ?-|\|-|\| demand ", line)]
    found = [ROW.fullmatch(line) for line in rows]
    assert [row for row, match in zip(rows, found, strict=True) if not match] == []
    return [match.groups() for match in found]


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


@pytest.mark.parametrize("page", LISTS, ids=lambda page: page.stem)
def test_each_demand_has_existing_evidence_or_a_reason(page):
    for demand, state, evidence in demands_of(page):
        named = SPAN.findall(evidence.replace("\\|", "|"))
        if state == "shown":
            assert named, f"{demand}: names no evidence"
            assert [name for name in named if not exists(name)] == [], demand
        else:
            assert len(evidence) > 20, f"{demand}: gives no reason"


def test_tutorial_index_counts_match_demand_lists():
    counts = {
        page.stem: [len(rows), *(sum(state == wanted for _, state, _ in rows) for wanted in ("shown", "refused"))]
        for page in LISTS
        for rows in [demands_of(page)]
    }
    index = (TUTORIALS / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"(?m)^\| \[([\w-]+)\]\(demands/\1\.md\) \| (\d+) \| (\d+) \| (\d+) \|$", index)
    assert {name: [*map(int, numbers)] for name, *numbers in shown} == counts
    assert {page.stem for page in TUTORIALS.glob("[!R]*.md")} == {*counts}


def test_missing_evidence_is_detected():
    assert exists("tests/unit/test_tutorial_demands.py::test_missing_evidence_is_detected")
    assert exists("make train")
    assert not exists("tests/unit/test_tutorial_demands.py::test_gone")
    assert not exists("tests/unit/test_gone.py::test_gone")
    assert not exists("make coffee")

"""Each demand's change breaks it: the test that the change names fails with it, and passes without it."""

import importlib.util
from importlib.machinery import SourceFileLoader

import pytest

from demand_lists import apply, changes
from readme import ROOT

pytestmark = pytest.mark.prove
LIMIT = 1200
"""Seconds for one test."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest; others mean that a test was not found or that pytest itself failed."""


def load_mutants():
    """Return build/mutants, which makes copies of the checkout whose programs import the copy's sources."""
    loader = SourceFileLoader("mutants", str(ROOT / "build" / "mutants"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", loader))
    loader.exec_module(module)
    return module


MUTANTS = load_mutants()


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return this worker's copy of the checkout."""
    folder = tmp_path_factory.mktemp("demands") / "copy"
    folder.mkdir()
    MUTANTS.copy_tree(folder)
    return folder


@pytest.fixture(scope="module")
def outcome(copy):
    """Return a function that runs a test in the copy as it is, and returns pytest's exit code and output."""

    def run(test):
        done = MUTANTS.pytest_in(copy, ["-m", "", test], LIMIT)
        assert done, f"{test} is not done after {LIMIT} s"
        return done

    return run


@pytest.fixture(scope="module")
def unchanged(outcome):
    """Return a function that requires that a test passes in the unchanged copy; it runs each test once."""
    ran = {}

    def require(test):
        if test not in ran:
            ran[test] = outcome(test)
        code, said = ran[test]
        assert code == PASSED, f"{test} fails without a change: {said}"
        if " passed" not in said.splitlines()[-1]:
            pytest.skip(f"{test} is skipped on this machine")

    return require


@pytest.mark.parametrize("name", changes())
def test_change_breaks_demand(copy, outcome, unchanged, name):
    change = changes()[name]
    unchanged(change["fails"])
    path = copy / change["file"]
    before = path.read_text(encoding="utf-8")
    path.write_text(apply(before, change), encoding="utf-8")
    try:
        code, said = outcome(change["fails"])
    finally:
        path.write_text(before, encoding="utf-8")
    assert code == FAILED, f"{change['fails']} exits with {code} though {change['file']} is changed: {said}"

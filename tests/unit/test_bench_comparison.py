"""bench/: evaluation of measured costs, and that it runs without a GPU."""

import json
import sys

import pytest

from support import ROOT

sys.path.insert(1, str(ROOT / "bench"))

from comparison import AGAIN, Cost, Measure, compare, compare_all, run


def turns(costs):
    """Return a function that costs the next of these values in each call."""
    left = iter(costs)
    return lambda: Cost(next(left), clock=2.0)


def test_contender_is_compared_with_peer_of_same_round():
    found = compare("a", {"peer": turns([8, 8, 20, 20]), "own": turns([4, 5])}, rounds=2, aims={"own": 2.5})
    assert found.ratios("own") == [2, 4]
    assert not found.is_void
    assert not found.misses("own")
    assert "| own | 4.5 | 2 | 3.00 (2.00-4.00) | 2.5 |" in found.table()


def test_missed_target_ratio_is_reported():
    found = compare("a", {"peer": turns([8, 8]), "own": turns([4])}, rounds=1, aims={"own": 2.5})
    assert found.misses("own")
    assert "2.5, missed" in found.table()
    assert not found.misses(AGAIN)


@pytest.mark.parametrize(("aim", "missed"), [(1.0, False), (1.2, True)])
def test_target_ratio_may_refer_to_another_contender(aim, missed):
    contenders = {"peer": turns([8, 8]), "own": turns([4]), "other": turns([4.4])}
    found = compare("a", contenders, rounds=1, aims={"own": {"peer": 2, "other": aim}})
    assert found.misses("own") == missed
    assert f"2; {aim:.3g} x other" in found.table()


@pytest.mark.parametrize(("limit", "missed"), [(5, False), (3, True)])
def test_limit_applies_to_absolute_cost(limit, missed):
    measures = [Measure("stall", "ms", limits={"own": limit})]
    [found] = compare_all(measures, {"peer": lambda: [Cost(9)], "own": lambda: [Cost(4)]}, rounds=1)
    assert found.misses("own") == missed
    assert f"at most {limit}" in found.table()


def test_peer_that_differs_from_itself_voids_comparison():
    found = compare("a", {"peer": turns([8, 10]), "own": turns([4])}, rounds=1)
    assert found.is_void
    assert "VOID" in found.table()
    assert json.loads(json.dumps(found.as_json()))["void"]


def test_one_turn_may_measure_several_costs():
    measures = [Measure("time", "s"), Measure("memory", "MB")]
    both = {"peer": lambda: [Cost(1), Cost(10)], "own": lambda: [Cost(2), Cost(5)]}
    time, memory = compare_all(measures, both, rounds=1)
    assert (time.ratios("own"), memory.ratios("own")) == ([0.5], [2])


def test_command_cost_includes_children_and_failure_raises():
    spin = "import time\nwhile time.process_time() < 0.2: pass"
    cost = run([sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {spin!r}])"])
    assert cost.value >= 0.2
    assert cost.clock >= 0.2
    with pytest.raises(SystemExit, match="exit code 3"):
        run([sys.executable, "-c", "raise SystemExit(3)"])

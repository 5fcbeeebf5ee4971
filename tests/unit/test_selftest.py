"""The selftest's verdict: which faults it finds in what ranks tell of themselves, and in which words."""

import dataclasses

import pytest

from trainer.selftest.measure import Facts
from trainer.selftest.verdict import faults

HEALTHY = [
    Facts(
        host=f"node{1 + rank // 2}",
        rank=rank,
        local_rank=rank % 2,
        device=f"cuda:{rank % 2}",
        gpu="",
        cpus=[0, 1, 2, 3],
        threads=2,
        python="3.11.7",
        torch="2.13.0",
        trainer="abc",
        forward_ms=10.0 + rank,
        reduced=10.0,
        reduce_ms=1.0,
    )
    for rank in range(4)
]


def with_change(*ranks, **fields):
    return [dataclasses.replace(facts, **fields) if facts.rank in ranks else facts for facts in HEALTHY]


def test_ranks_that_are_as_planned_have_none():
    assert faults(HEALTHY, ranks_per_node="2") == faults(HEALTHY) == []


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (with_change(1, host="node2", device="cuda:2"), "node1 has 1 rank(s) and 2 were planned"),
        (with_change(1, device="cuda:0"), "2 ranks share cuda:0 of node1"),
        (with_change(2, 3, device="cpu"), "device differs: cuda on rank 0 (node1), cpu on rank 2 (node2); is SLIPWAY_"),
        (with_change(3, torch="2.12.0"), "torch differs: 2.13.0 on rank 0 (node1), 2.12.0 on rank 3 (node2); do all"),
        (with_change(2, trainer="def"), "trainer differs: abc on rank 0 (node1), def on rank 2 (node2)"),
        (with_change(3, threads=1), "threads differs: 2 on rank 0 (node1), 1 on rank 3 (node2); is OMP_NUM_THREADS"),
        (with_change(2, 3, cpus=[0, 1]), "node2 computes with 4 threads on 2 CPU(s)"),
        (with_change(1, forward_ms=50.0), "rank 1 on node1 takes 50 ms for what takes others 12"),
        (with_change(0, reduced=9.0), "the all-reduce gave 9 on rank 0 (node1), and 10 is right"),
    ],
)
def test_a_fault_is_named_with_its_place(ranks, said):
    found = faults(ranks, ranks_per_node="2")
    assert [fault for fault in found if fault.startswith(said)], found


def test_without_a_plan_nodes_are_compared_with_each_other():
    found = faults(with_change(1, host="node2", device="cuda:2"))
    assert "nodes have different numbers of ranks (node1 1, node2 3)" in found


def test_a_reduction_that_was_not_tried_is_not_wrong():
    assert faults(with_change(0, 1, 2, 3, reduced=0.0, reduce_ms=-1.0)) == []

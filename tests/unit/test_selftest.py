"""The selftest's verdict: faults that it finds in the ranks' reports, and its messages."""

import dataclasses
import re

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


def test_healthy_ranks_have_no_faults():
    assert faults(HEALTHY, ranks_per_node="2") == faults(HEALTHY) == []


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (with_change(1, host="node2", device="cuda:2"), "node1 1 2 (TRAINER_RANKS_PER_NODE)"),
        (with_change(1, device="cuda:0"), "2 cuda:0 node1"),
        (with_change(2, 3, device="cpu"), "device cuda 0 (node1) cpu 2 (node2) SLIPWAY_DEVICE"),
        (with_change(3, torch="2.12.0"), "torch 2.13.0 0 (node1) 2.12.0 3 (node2) SLIPWAY_IMAGE SLIPWAY_VENV"),
        (with_change(2, trainer="def"), "trainer abc 0 (node1) def 2 (node2) SLIPWAY_IMAGE"),
        (with_change(3, threads=1), "threads 2 0 (node1) 1 3 (node2) OMP_NUM_THREADS"),
        (with_change(2, 3, cpus=[0, 1]), "node2 4 threads 2 OMP_NUM_THREADS"),
        (with_change(1, forward_ms=50.0), "1 node1 50 ms 12"),
        (with_change(0, reduced=9.0), "all-reduce 9 0 (node1) 10"),
    ],
)
def test_fault_is_reported_with_rank_and_node(ranks, words):
    """One of the messages holds these words in this order."""
    pattern = ".*".join(rf"(?<!\S){re.escape(word)}(?!\w)" for word in words.split())
    found = faults(ranks, ranks_per_node="2")
    assert [fault for fault in found if re.search(pattern, fault)], found


def test_rank_counts_of_nodes_are_compared_without_plan():
    found = faults(with_change(1, host="node2", device="cuda:2"))
    assert "(node1 1, node2 3)" in found[0]


def test_skipped_all_reduce_is_no_fault():
    assert faults(with_change(0, 1, 2, 3, reduced=0.0, reduce_ms=-1.0)) == []

"""Selftest verdict: faults of a set of ranks as messages, computed from their facts alone."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from trainer.selftest.measure import Facts

SLOW = 3.0
"""A rank is slow if its forward pass takes more than this many times the median; less is noise on a busy machine."""

EQUAL_ON_RANKS: dict[str, tuple[Callable[[Facts], str], str]] = {
    "device": (
        lambda rank: rank.device.partition(":")[0],
        "is SLIPWAY_DEVICE the same on all nodes, and the driver installed",
    ),
    "Python": (lambda rank: rank.python, "do all nodes use the same SLIPWAY_IMAGE or SLIPWAY_VENV"),
    "torch": (lambda rank: rank.torch, "do all nodes use the same SLIPWAY_IMAGE or SLIPWAY_VENV"),
    "trainer": (
        lambda rank: rank.trainer,
        "do all nodes use the same SLIPWAY_IMAGE or SLIPWAY_VENV, and the same sources mounted over it",
    ),
    "threads": (lambda rank: str(rank.threads), "is OMP_NUM_THREADS the same on all nodes"),
}
"""Values that must be the same on all ranks, and what to check if they differ."""


def faults(ranks: Sequence[Facts], *, ranks_per_node: str = "") -> list[str]:
    """Return one clause for each fault of ``ranks``. The world size has been checked before.

    ``ranks_per_node`` is the planned number; "" if there is no plan.
    """
    return [
        *_misplaced(ranks, ranks_per_node),
        *_differing(ranks),
        *_oversubscribed(ranks),
        *slow_ranks(ranks),
        *_wrong_sum(ranks),
    ]


def slow_ranks(ranks: Sequence[Facts]) -> list[str]:
    """Return one clause for each of ``ranks`` that is much slower than most of them."""
    typical = statistics.median_low(rank.forward_ms for rank in ranks)
    return [
        f"rank {rank.rank} on {rank.host} takes {rank.forward_ms:.0f} ms for a forward pass (median "
        f"{typical:.0f} ms): is another program running there, or is the rank bound to too few CPUs?"
        for rank in ranks
        if rank.forward_ms > SLOW * typical
    ]


def _misplaced(ranks: Sequence[Facts], planned: str) -> Iterator[str]:
    found = Counter(rank.host for rank in ranks)
    for host, count in found.items():
        if planned and str(count) != planned:
            yield f"{host} has {count} rank(s) instead of {planned} (TRAINER_RANKS_PER_NODE)"
    if not planned and len(set(found.values())) > 1:
        yield f"nodes have different numbers of ranks ({', '.join(f'{host} {count}' for host, count in found.items())})"
    for (host, device), count in Counter((rank.host, rank.device) for rank in ranks).items():
        if count > 1 and device != "cpu":
            yield f"{count} ranks share {device} on {host}: start one rank per GPU"


def _differing(ranks: Sequence[Facts]) -> Iterator[str]:
    for name, (value, remedy) in EQUAL_ON_RANKS.items():
        first: dict[str, Facts] = {}
        for rank in ranks:
            first.setdefault(value(rank), rank)
        if len(first) > 1:
            who = ", ".join(f"{text} on rank {rank.rank} ({rank.host})" for text, rank in first.items())
            yield f"{name} differs: {who}; {remedy}?"


def _oversubscribed(ranks: Sequence[Facts]) -> Iterator[str]:
    for host in dict.fromkeys(rank.host for rank in ranks):
        here = [rank for rank in ranks if rank.host == host]
        threads, cpus = sum(rank.threads for rank in here), len(set().union(*(rank.cpus for rank in here)))
        if threads > cpus:
            yield f"{host} runs {threads} threads on {cpus} CPU(s): lower OMP_NUM_THREADS or request more CPUs"


def _wrong_sum(ranks: Sequence[Facts]) -> Iterator[str]:
    expected = len(ranks) * (len(ranks) + 1) / 2
    for rank in ranks:
        if rank.reduce_ms >= 0 and rank.reduced != expected:
            yield f"the all-reduce gave {rank.reduced:g} on rank {rank.rank} ({rank.host}) instead of {expected:g}"
            break

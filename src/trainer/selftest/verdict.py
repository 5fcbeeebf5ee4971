"""What is wrong with a set of ranks, in words; nothing here needs one."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from trainer.selftest.measure import Facts

SLOW = 3.0
"""A rank that takes so many times the median holds up all others; less is noise of a machine in use."""

ALIKE: dict[str, tuple[Callable[[Facts], str], str]] = {
    "device": (
        lambda rank: rank.device.partition(":")[0],
        "is SLIPWAY_DEVICE the same everywhere, and the driver there",
    ),
    "Python": (lambda rank: rank.python, "do all nodes see one SLIPWAY_IMAGE or SLIPWAY_VENV"),
    "torch": (lambda rank: rank.torch, "do all nodes see one SLIPWAY_IMAGE or SLIPWAY_VENV"),
    "trainer": (
        lambda rank: rank.trainer,
        "do all nodes see one SLIPWAY_IMAGE or SLIPWAY_VENV, and the same sources bound over it",
    ),
    "threads": (lambda rank: str(rank.threads), "is OMP_NUM_THREADS the same everywhere"),
}
"""What must be the same on all ranks, and what to look at where it is not."""


def faults(ranks: Sequence[Facts], *, ranks_per_node: str = "") -> list[str]:
    """Return all that is wrong with ``ranks``, a clause each; the size of the world has been compared before.

    ``ranks_per_node`` is the plan, "" where there is none.
    """
    return [*_misplaced(ranks, ranks_per_node), *_differing(ranks), *_crowded(ranks), *_slow(ranks), *_wrong_sum(ranks)]


def _misplaced(ranks: Sequence[Facts], planned: str) -> Iterator[str]:
    found = Counter(rank.host for rank in ranks)
    for host, count in found.items():
        if planned and str(count) != planned:
            yield f"{host} has {count} rank(s) and {planned} were planned (TRAINER_RANKS_PER_NODE)"
    if not planned and len(set(found.values())) > 1:
        yield f"nodes have different numbers of ranks ({', '.join(f'{host} {count}' for host, count in found.items())})"
    for (host, device), count in Counter((rank.host, rank.device) for rank in ranks).items():
        if count > 1 and device != "cpu":
            yield f"{count} ranks share {device} of {host}: start one per GPU"


def _differing(ranks: Sequence[Facts]) -> Iterator[str]:
    for name, (value, remedy) in ALIKE.items():
        first: dict[str, Facts] = {}
        for rank in ranks:
            first.setdefault(value(rank), rank)
        if len(first) > 1:
            who = ", ".join(f"{text} on rank {rank.rank} ({rank.host})" for text, rank in first.items())
            yield f"{name} differs: {who}; {remedy}?"


def _crowded(ranks: Sequence[Facts]) -> Iterator[str]:
    for host in dict.fromkeys(rank.host for rank in ranks):
        here = [rank for rank in ranks if rank.host == host]
        threads, cpus = sum(rank.threads for rank in here), len(set().union(*(rank.cpus for rank in here)))
        if threads > cpus:
            yield f"{host} computes with {threads} threads on {cpus} CPU(s): lower OMP_NUM_THREADS or ask for more"


def _slow(ranks: Sequence[Facts]) -> Iterator[str]:
    typical = statistics.median_low(rank.forward_ms for rank in ranks)
    for rank in ranks:
        if rank.forward_ms > SLOW * typical:
            yield (
                f"rank {rank.rank} on {rank.host} takes {rank.forward_ms:.0f} ms for what takes others {typical:.0f}: "
                "does something else run there, or is it bound to too few CPUs?"
            )


def _wrong_sum(ranks: Sequence[Facts]) -> Iterator[str]:
    expected = len(ranks) * (len(ranks) + 1) / 2
    for rank in ranks:
        if rank.reduce_ms >= 0 and rank.reduced != expected:
            yield f"the all-reduce gave {rank.reduced:g} on rank {rank.rank} ({rank.host}), and {expected:g} is right"
            break

"""Costs of contenders that take turns, in another order each round: what else the machine does falls on all alike."""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

NOISE = 1.1
"""A peer against itself: a comparison whose ratio is off by more is void."""
AGAIN = "the first again"


class Cost(NamedTuple):
    """Of one turn."""

    value: float
    """What is compared, in the unit of the measure: as a rule CPU time."""
    clock: float | None = None
    """Seconds, or the like, by the clock, where they were measured too."""


Turn = Callable[[], Cost]
Aim = float | Mapping[str, float]


class Measure(NamedTuple):
    """What is compared."""

    title: str
    unit: str
    aims: Mapping[str, Aim] = {}
    """How many times less than the peer a contender is to cost; or than each of several contenders, by their names."""
    limits: Mapping[str, float] = {}
    """What a contender is to cost at most, in the unit of the measure."""


@dataclass(frozen=True)
class Comparison:
    """What contenders cost, each round."""

    measure: Measure
    costs: dict[str, list[Cost]]
    """Of each contender; the first one is the peer that the others are compared with, the last one that once more."""

    @property
    def peer(self) -> str:
        """The contender that the others are compared with."""
        return next(iter(self.costs))

    def ratios(self, name: str, peer: str | None = None) -> list[float]:
        """Return how many times less than the peer, or another contender, a contender cost, round by round."""
        pairs = zip(self.costs[peer or self.peer], self.costs[name], strict=True)
        return [first.value / cost.value for first, cost in pairs]

    @property
    def is_void(self) -> bool:
        """Whether the machine was too busy to measure."""
        return not 1 / NOISE < statistics.median(self.ratios(AGAIN)) < NOISE

    def aims(self, name: str) -> dict[str, float]:
        """Return how many times less than which others a contender is to cost."""
        aim = self.measure.aims.get(name, {})
        return {self.peer: aim} if isinstance(aim, float | int) else dict(aim)

    def misses(self, name: str) -> bool:
        """Return whether a contender misses one of its aims, or its limit."""
        cost = statistics.median(cost.value for cost in self.costs[name])
        return cost > self.measure.limits.get(name, float("inf")) or any(
            statistics.median(self.ratios(name, peer)) < aim for peer, aim in self.aims(name).items()
        )

    def table(self) -> str:
        """Return a table in Markdown, with a row for each contender."""
        title, unit = self.measure.title, self.measure.unit
        rounds = len(self.costs[AGAIN])
        head = [
            f"{title}: medians of {rounds} rounds, least and most in brackets"
            + ("; VOID, the machine was too busy" if self.is_void else ""),
            "",
            f"| | {unit} | by the clock | times less | aim |",
            "|---|---|---|---|---|",
        ]
        return "\n".join([*head, *map(self._row, self.costs)])

    def _row(self, name: str) -> str:
        clocks = [cost.clock for cost in self.costs[name] if cost.clock is not None]
        ratios = self.ratios(name)
        aims = [f"{aim:.3g}{'' if peer == self.peer else f' x {peer}'}" for peer, aim in self.aims(name).items()]
        aims += [f"at most {limit:.3g}" for limit in [self.measure.limits.get(name)] if limit is not None]
        cells = [
            name,
            f"{statistics.median(cost.value for cost in self.costs[name]):.4g}",
            f"{statistics.median(clocks):.4g}" if clocks else "",
            f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            "; ".join(aims) + (", missed" if self.misses(name) else ""),
        ]
        return f"| {' | '.join(cells)} |"

    def as_json(self) -> dict[str, Any]:
        """Return all costs, and what they come to."""
        ratios = {name: self.ratios(name) for name in self.costs}
        costs = {name: [cost._asdict() for cost in turns] for name, turns in self.costs.items()}
        return {**self.measure._asdict(), "void": self.is_void, "costs": costs, "ratios": ratios}


def compare(
    title: str,
    contenders: Mapping[str, Turn],
    *,
    rounds: int,
    unit: str = "CPU seconds",
    aims: Mapping[str, Aim] | None = None,
) -> Comparison:
    """Let contenders take turns for some rounds; the first one, their peer, has two turns in each."""

    def in_list(turn: Turn) -> list[Cost]:
        return [turn()]

    turns = {name: partial(in_list, turn) for name, turn in contenders.items()}
    return compare_all([Measure(title, unit, aims or {})], turns, rounds=rounds)[0]


def compare_all(
    measures: Sequence[Measure], contenders: Mapping[str, Callable[[], Sequence[Cost]]], *, rounds: int
) -> list[Comparison]:
    """Do the same for contenders whose turns have a cost in each of some ``measures``."""
    peer = next(iter(contenders))
    found: dict[str, list[Sequence[Cost]]] = {name: [] for name in [*contenders, AGAIN]}
    for number in range(rounds):
        for name in random.Random(number).sample([*found], len(found)):
            found[name].append(contenders[peer if name is AGAIN else name]())
        print(f"{measures[0].title}: round {number + 1} of {rounds}", file=sys.stderr)
    return [
        Comparison(measure, {name: [turn[place] for turn in turns] for name, turns in found.items()})
        for place, measure in enumerate(measures)
    ]


def timed(action: Callable[[], object], *, device: str = "cpu") -> Cost:
    """Return what an action in this process takes; on a GPU the time by the clock is what is compared."""
    import torch  # noqa: PLC0415 -- takes its time, and not all comparisons need it

    used, began = time.process_time(), time.perf_counter()
    action()
    if device != "cpu":
        torch.cuda.synchronize()
    clock = time.perf_counter() - began
    return Cost(time.process_time() - used if device == "cpu" else clock, clock)


def run(words: Sequence[str | Path], *, tries: int = 1, **environment: str) -> Cost:
    """Return what a command, and all that it starts, takes; exit if it fails as often as it is tried."""
    with tempfile.TemporaryFile() as output:
        began = time.monotonic()
        child = subprocess.Popen(words, stdout=output, stderr=output, env=os.environ | environment)
        _, status, used = os.wait4(child.pid, 0)
        clock = time.monotonic() - began
        if code := os.waitstatus_to_exitcode(status):
            output.seek(0)
            said = f"exit code {code}: {words}\n{output.read().decode(errors='replace')}"
            if tries == 1:
                sys.exit(said)
            print(f"{said}\ntried again", file=sys.stderr)
            return run(words, tries=tries - 1, **environment)
    return Cost(used.ru_utime + used.ru_stime, clock)


def show(comparisons: Iterable[Comparison]) -> None:
    """Print the tables."""
    for comparison in comparisons:
        print(comparison.table(), "\n", flush=True)

"""Compare the costs of contenders that take turns in a new order each round, so that other load affects all alike."""

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
"""Largest ratio of the peer to itself, or its inverse; beyond it a comparison is void."""
AGAIN = "the first again"


class Cost(NamedTuple):
    """The cost of one turn."""

    value: float
    """The value compared, in the unit of the measure: usually CPU time."""
    clock: float | None = None
    """Wall-clock time, usually in seconds, if it was measured."""


Turn = Callable[[], Cost]
Aim = float | Mapping[str, float]


class Measure(NamedTuple):
    """A quantity to compare."""

    title: str
    unit: str
    aims: Mapping[str, Aim] = {}
    """Targets by contender: the factor by which it should cost less than the peer, or than each named contender."""
    limits: Mapping[str, float] = {}
    """Maximum cost by contender, in the unit of the measure."""


@dataclass(frozen=True)
class Comparison:
    """The costs of contenders in each round."""

    measure: Measure
    costs: dict[str, list[Cost]]
    """Costs by contender: first the peer that the others are compared with, last (AGAIN) the peer once more."""

    @property
    def peer(self) -> str:
        """The contender that the others are compared with."""
        return next(iter(self.costs))

    def ratios(self, name: str, peer: str | None = None) -> list[float]:
        """Return, for each round, the factor by which a contender cost less than the peer or another contender."""
        pairs = zip(self.costs[peer or self.peer], self.costs[name], strict=True)
        return [first.value / cost.value for first, cost in pairs]

    @property
    def is_void(self) -> bool:
        """True if the machine was too busy to measure."""
        return not 1 / NOISE < statistics.median(self.ratios(AGAIN)) < NOISE

    def aims(self, name: str) -> dict[str, float]:
        """Return a contender's targets by peer: the factor by which it should cost less."""
        aim = self.measure.aims.get(name, {})
        return {self.peer: aim} if isinstance(aim, float | int) else dict(aim)

    def misses(self, name: str) -> bool:
        """Return whether a contender misses a target or exceeds its limit."""
        cost = statistics.median(cost.value for cost in self.costs[name])
        return cost > self.measure.limits.get(name, float("inf")) or any(
            statistics.median(self.ratios(name, peer)) < aim for peer, aim in self.aims(name).items()
        )

    def table(self) -> str:
        """Return a Markdown table with a row for each contender."""
        title, unit = self.measure.title, self.measure.unit
        rounds = len(self.costs[AGAIN])
        head = [
            f"{title}: medians of {rounds} rounds, minimum and maximum in brackets"
            + ("; VOID, the machine was too busy" if self.is_void else ""),
            "",
            f"| | {unit} | wall clock | times less | target |",
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
        """Return all costs and ratios as JSON types."""
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
    """Let contenders take turns for some rounds; the first one, the peer, takes two turns in each."""

    def in_list(turn: Turn) -> list[Cost]:
        return [turn()]

    turns = {name: partial(in_list, turn) for name, turn in contenders.items()}
    return compare_all([Measure(title, unit, aims or {})], turns, rounds=rounds)[0]


def compare_all(
    measures: Sequence[Measure], contenders: Mapping[str, Callable[[], Sequence[Cost]]], *, rounds: int
) -> list[Comparison]:
    """Like ``compare``, for contenders whose turns return a cost for each of ``measures``."""
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
    """Return the cost of an action in this process: its CPU time, or on a GPU its wall-clock time."""
    import torch  # noqa: PLC0415 -- slow, and not all comparisons need it

    used, began = time.process_time(), time.perf_counter()
    action()
    if device != "cpu":
        torch.cuda.synchronize()
    clock = time.perf_counter() - began
    return Cost(time.process_time() - used if device == "cpu" else clock, clock)


def run(words: Sequence[str | Path], *, tries: int = 1, **environment: str) -> Cost:
    """Return the cost of a command and all its children; exit if all ``tries`` fail."""
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

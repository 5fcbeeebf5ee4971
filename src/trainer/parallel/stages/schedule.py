"""Pipeline schedules: the order in which stages process the micro-batches of an optimizer step, as lists.

Sources: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019 (1F1B, here with a flush at each
step). Each stage processes the micro-batches in ascending order, also in the backward direction, so that gradients add
up in the same order as without a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

Kind = Literal["F", "B"]


class Unit(NamedTuple):
    """A pass of one micro-batch through one stage: forward (F) or backward (B)."""

    stage: int
    kind: Kind
    micro: int


class Timed(NamedTuple):
    """A unit with its start and end time."""

    unit: Unit
    start: float
    end: float


def gpipe(stages: int, micros: int) -> list[Unit]:
    """Return the GPipe schedule, in order of issue: in each stage all forward passes, then all backward passes."""
    orders = [[Unit(stage, kind, micro) for kind in _KINDS for micro in range(micros)] for stage in range(stages)]
    return [unit for unit, _, _ in simulate(orders, _unit_cost)]


def one_f_one_b(stages: int, micros: int) -> list[Unit]:
    """Return the 1F1B schedule, in order of issue: stages run backward passes early, and so keep few activations."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, micros)
        order = [Unit(stage, "F", micro) for micro in range(ahead)]
        for micro in range(micros):
            order.append(Unit(stage, "B", micro))
            if ahead + micro < micros:
                order.append(Unit(stage, "F", ahead + micro))
        orders.append(order)
    return [unit for unit, _, _ in simulate(orders, _unit_cost)]


SCHEDULES: dict[str, Callable[[int, int], list[Unit]]] = {"gpipe": gpipe, "1f1b": one_f_one_b}
"""Schedules by name; each maps the numbers of stages and micro-batches to the units, in order of issue."""


def simulate(orders: Sequence[Sequence[Unit]], cost: Callable[[Unit], float]) -> list[Timed]:
    """Return the times of all units if each stage runs its units in order and waits for their inputs.

    Args:
        orders: the units of each stage, in its order.
        cost: duration of a unit.

    Returns:
        list[Timed]: sorted by start. On a tie the later stage comes first, because earlier stages wait for it.

    Raises:
        ValueError: if the stages deadlock.
    """
    done: dict[Unit, float] = {}
    found = []
    next_one = [0] * len(orders)
    free = [0.0] * len(orders)
    while any(place < len(order) for place, order in zip(next_one, orders, strict=True)):
        ready = []
        for stage, order in enumerate(orders):
            if next_one[stage] < len(order):
                unit = order[next_one[stage]]
                needed = needs(unit, stages=len(orders))
                if all(other in done for other in needed):
                    ready.append((max([free[stage], *(done[other] for other in needed)]), -stage, unit))
        if not ready:
            raise ValueError("stages wait for each other forever")
        start, _, unit = min(ready)
        end = start + cost(unit)
        done[unit] = free[unit.stage] = end
        next_one[unit.stage] += 1
        found.append(Timed(unit, start, end))
    return sorted(found, key=lambda timed: (timed.start, -timed.unit.stage))


def needs(unit: Unit, *, stages: int) -> list[Unit]:
    """Return the units whose results ``unit`` needs."""
    stage, kind, micro = unit
    if kind == "F":
        return [Unit(stage - 1, "F", micro)] if stage else []
    return [Unit(stage, "F", micro), *([Unit(stage + 1, "B", micro)] if stage + 1 < stages else [])]


def by_stage(units: Iterable[Unit], stages: int) -> list[list[Unit]]:
    """Group ``units`` by stage; each group keeps their order."""
    orders: list[list[Unit]] = [[] for _ in range(stages)]
    for unit in units:
        orders[unit.stage].append(unit)
    return orders


def live_micros(units: Iterable[Unit], stage: int) -> int:
    """Return the largest number of micro-batches whose activations ``stage`` keeps at once."""
    most = live = 0
    for unit in units:
        if unit.stage == stage:
            live += 1 if unit.kind == "F" else -1
            most = max(most, live)
    return most


_KINDS: tuple[Kind, Kind] = ("F", "B")


def _unit_cost(_unit: Unit) -> float:
    return 1.0

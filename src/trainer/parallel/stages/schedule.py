"""In which order the stages of a pipeline work on the micro-batches of an optimiser step: lists, and nothing else.

Source of both orders: Huang et al., "GPipe", NeurIPS 2019; Narayanan et al., "PipeDream", SOSP 2019 (1F1B, here with a
flush at each step). Every stage takes the micro-batches in ascending order, backward too, so that gradients add up in
the same order as without a pipeline.
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
    """A unit, and when it runs."""

    unit: Unit
    start: float
    end: float


def gpipe(stages: int, micros: int) -> list[Unit]:
    """Return all forward passes, then all backward passes, in the order in which they are to be issued."""
    orders = [[Unit(stage, kind, micro) for kind in _KINDS for micro in range(micros)] for stage in range(stages)]
    return [unit for unit, _, _ in simulate(orders, _unit_cost)]


def one_f_one_b(stages: int, micros: int) -> list[Unit]:
    """Return the order in which a stage goes backward as soon as it can, and so keeps few activations."""
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
"""By name: the units of ``stages`` and ``micros``, in the order of issue."""


def simulate(orders: Sequence[Sequence[Unit]], cost: Callable[[Unit], float]) -> list[Timed]:
    """Return when each unit runs if each stage works through its own order, and waits for what a unit needs.

    Args:
        orders: the units of each stage, in its order.
        cost: how long a unit takes.

    Returns:
        list[Timed]: by start; of equal ones the later stage comes first, whose work the earlier ones wait for.

    Raises:
        ValueError: if stages wait for each other for ever.
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
            raise ValueError("stages wait for each other for ever")
        start, _, unit = min(ready)
        end = start + cost(unit)
        done[unit] = free[unit.stage] = end
        next_one[unit.stage] += 1
        found.append(Timed(unit, start, end))
    return sorted(found, key=lambda timed: (timed.start, -timed.unit.stage))


def needs(unit: Unit, *, stages: int) -> list[Unit]:
    """Return the units whose results ``unit`` works on."""
    stage, kind, micro = unit
    if kind == "F":
        return [Unit(stage - 1, "F", micro)] if stage else []
    return [Unit(stage, "F", micro), *([Unit(stage + 1, "B", micro)] if stage + 1 < stages else [])]


def by_stage(units: Iterable[Unit], stages: int) -> list[list[Unit]]:
    """Return the units of each stage, in their order."""
    orders: list[list[Unit]] = [[] for _ in range(stages)]
    for unit in units:
        orders[unit.stage].append(unit)
    return orders


def live_micros(units: Iterable[Unit], stage: int) -> int:
    """Return of how many micro-batches ``stage`` keeps activations at once, at most."""
    most = live = 0
    for unit in units:
        if unit.stage == stage:
            live += 1 if unit.kind == "F" else -1
            most = max(most, live)
    return most


_KINDS: tuple[Kind, Kind] = ("F", "B")


def _unit_cost(_unit: Unit) -> float:
    return 1.0

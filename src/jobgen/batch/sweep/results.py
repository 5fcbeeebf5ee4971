"""Results of a sweep's trials, their status table, and the choice of trials to submit next."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from jobgen.batch.states import RunState, queue_time_text, states_of, table
from jobgen.batch.sweep.record import Goal, Sweep, Trial
from slipway.base.bounded_read import read_whole
from slipway.base.contract import METRICS


class Result(NamedTuple):
    """A trial, its state, and its best metric value."""

    state: RunState[Trial]
    best: Optional[float]
    """Best value of the sweep's metric so far: from validation, or from training if no trial has validated; or None."""


class TrialGroup(NamedTuple):
    """Trials with the same values: one for each seed."""

    results: List[Result]
    mean: Optional[float]
    """Mean of their best values; None if a trial failed or has no value yet."""


def results_of(sweep: Sweep) -> List[Result]:
    """Return the current results of all trials.

    Raises:
        JobgenError: if the scheduler's answer is needed and it does not answer.
    """
    states = states_of(sweep)
    found = [best_values(sweep.run_folder(state.entry), sweep.head.metric, sweep.head.goal) for state in states]
    validated = any(best.validation is not None for best in found)
    return [Result(state, best.validation if validated else best.training) for state, best in zip(states, found)]


class Best(NamedTuple):
    """Best values that a run recorded; None if it recorded none."""

    validation: Optional[float]
    training: Optional[float]


def best_values(run: Path, metric: str, goal: Goal) -> Best:
    """Return the best finite values of ``metric`` that a run recorded."""
    try:
        lines = read_whole(run / METRICS).decode(errors="replace").splitlines()
    except OSError:
        return Best(None, None)
    found: Dict[bool, List[float]] = {True: [], False: []}
    for line in lines:
        if json.dumps(metric) not in line:
            continue
        try:
            record = json.loads(line)
            value, validation = record.get(metric), record.get("kind") == "validation"
        except (ValueError, AttributeError, RecursionError):  # an incomplete line, or not a record
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[validation].append(float(value))
    best = max if goal == "max" else min
    return Best(*(best(found[kind]) if found[kind] else None for kind in (True, False)))


def ranked(results: List[Result], goal: Goal) -> List[TrialGroup]:
    """Return the groups of trials, best first; groups without a mean come last."""
    groups: Dict[Tuple[Tuple[str, str], ...], List[Result]] = {}
    for result in results:
        groups.setdefault(tuple(result.state.entry.values.items()), []).append(result)
    points = [TrialGroup(group, _mean(group)) for group in groups.values()]
    sign = -1 if goal == "max" else 1
    return sorted(points, key=lambda point: math.inf if point.mean is None else sign * point.mean)


def _mean(group: List[Result]) -> Optional[float]:
    values = [result.best for result in group if result.state.state != "failed" and result.best is not None]
    return sum(values) / len(values) if len(values) == len(group) else None


def described(trial: Trial) -> str:
    """Return a trial's values as text: "lr=0.1 momentum=0.9"."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in trial.values.items())


def lines_of(sweep: Sweep, results: List[Result]) -> List[str]:
    """Return the status table: one line for each trial, best first, and a summary line."""
    metric = sweep.head.metric
    head = ["trial", "state", "queue", *(["epochs"] if sweep.head.rungs else []), metric, "values", "what"]
    points = ranked(results, sweep.head.goal)
    rows = [_row(sweep, result) for point in points for result in point.results]
    counts = Counter(result.state.state for result in results)
    said = ", ".join(
        f"{counts[name]} {name}" for name in ("done", "running", "waiting", "failed", "missing") if counts[name]
    )
    summary = f"{len(results)} trial(s): {said or 'none'}"
    if points and points[0].mean is not None:
        first = points[0].results
        mean = f"mean of {len(first)} " if len(first) > 1 else ""
        names = ", ".join(result.state.entry.name for result in first)
        summary += f"; best: {names} ({described(first[0].state.entry)}), {mean}{metric} {_shown(points[0].mean)}"
    return [*table([head, *rows]), summary]


def _row(sweep: Sweep, result: Result) -> List[str]:
    trial, several = result.state.entry, sweep.head.seeds > 1
    rung = [str(sweep.head.rungs[trial.rung])] if sweep.head.rungs else []
    values = " ".join(filter(None, [described(trial), f"seed={trial.seed}" if several else ""]))
    state = result.state
    return [trial.name, state.state, queue_time_text(state), *rung, _shown(result.best), values or "-", state.about]


def _shown(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.4g}"


class Plan(NamedTuple):
    """The trials to submit."""

    trials: List[Trial]
    rung: int
    """Rung of all these trials."""
    about: str
    """State of the rung for users; "" without rungs."""


def plan(sweep: Sweep, results: List[Result], *, keep: int) -> Plan:
    """Return the trials to submit now: missing and failed ones, or the best ones for their next rung.

    Rungs implement successive halving: K. Jamieson and A. Talwalkar, Non-stochastic best arm identification and
    hyperparameter optimization, AISTATS 2016.

    Args:
        sweep: the sweep.
        results: the results of all trials that may be submitted.
        keep: the best 1 / ``keep`` of the groups, at least one group, continue to the next rung.
    """
    rungs = sweep.head.rungs
    if not rungs:
        return Plan([result.state.entry for result in results if result.state.state in {"missing", "failed"}], 0, "")
    rung = max(result.state.entry.rung for result in results)
    here = [result for result in results if result.state.entry.rung == rung]
    again = [
        result.state.entry
        for result in here
        if result.state.state == "missing" or (result.state.state == "failed" and not result.state.refused)
    ]
    what = f"rung {rung + 1} of {len(rungs)}, epoch {rungs[rung]}"
    busy = sum(result.state.state in {"waiting", "running"} for result in here)
    if again or busy:
        return Plan(again, rung, f"{what}: {len(again) + busy} of {len(here)} trial(s) have not ended")
    if rung == len(rungs) - 1:
        return Plan([], rung, f"{what}: all trials have ended; this is the last rung")
    points = ranked(here, sweep.head.goal)
    best = [point for point in points[: max(1, len(points) // keep)] if point.mean is not None]
    trials = [result.state.entry for point in best for result in point.results]
    about = f"{what}: ended; the best {len(best)} of {len(points)} point(s) continue to epoch {rungs[rung + 1]}"
    return Plan(trials, rung + 1, about if best else f"{what}: no trial has a {sweep.head.metric}, so none continues")

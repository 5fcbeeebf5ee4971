"""How good the trials of a sweep are so far, how far they are, and which of them to submit next."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from jobgen.batch.states import RunState, shown_wait, states_of, table
from jobgen.batch.sweep.record import Goal, Sweep, Trial
from slipway.base.bounded_read import read_whole
from slipway.base.contract import METRICS


class Result(NamedTuple):
    """A trial, what became of it, and how good it is."""

    state: RunState[Trial]
    best: Optional[float]
    """The best value of the sweep's metric so far, of validation; of training where no trial has such; or None."""


class TrialGroup(NamedTuple):
    """The trials with the same values: one, or one for each seed."""

    results: List[Result]
    mean: Optional[float]
    """Of their best values; None where one of them has failed, or has none yet."""


def results_of(sweep: Sweep) -> List[Result]:
    """Return the trials as they are now.

    Raises:
        JobgenError: if the scheduler has to be asked, and does not answer.
    """
    states = states_of(sweep)
    found = [best_values(sweep.run_folder(state.entry), sweep.metric, sweep.goal) for state in states]
    validated = any(best.validation is not None for best in found)
    return [Result(state, best.validation if validated else best.training) for state, best in zip(states, found)]


class Best(NamedTuple):
    """The best values that a run has recorded; None if there is none."""

    validation: Optional[float]
    training: Optional[float]


def best_values(run: Path, metric: str, goal: Goal) -> Best:
    """Return the best values of ``metric`` that a run has recorded."""
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
        except (ValueError, AttributeError, RecursionError):  # half a line, or no record
            continue
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            found[validation].append(float(value))
    best = max if goal == "max" else min
    return Best(*(best(found[kind]) if found[kind] else None for kind in (True, False)))


def ranked(results: List[Result], goal: Goal) -> List[TrialGroup]:
    """Return the points, the best first; those without a mean come last."""
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
    """Return the values of a trial in words."""
    return " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in trial.values.items())


def lines_of(sweep: Sweep, results: List[Result]) -> List[str]:
    """Return a line for each trial, the best first, and one on all of them."""
    head = ["trial", "state", "queue", *(["epochs"] if sweep.rungs else []), sweep.metric, "values", "what"]
    points = ranked(results, sweep.goal)
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
        summary += f"; best: {names} ({described(first[0].state.entry)}), {mean}{sweep.metric} {_shown(points[0].mean)}"
    return [*table([head, *rows]), summary]


def _row(sweep: Sweep, result: Result) -> List[str]:
    trial, several = result.state.entry, sweep.content().seeds > 1
    rung = [str(sweep.rungs[trial.rung])] if sweep.rungs else []
    values = " ".join(filter(None, [described(trial), f"seed={trial.seed}" if several else ""]))
    state = result.state
    return [trial.name, state.state, shown_wait(state), *rung, _shown(result.best), values or "-", state.about]


def _shown(value: Optional[float]) -> str:
    return "-" if value is None else f"{value:.4g}"


class Plan(NamedTuple):
    """What to submit."""

    trials: List[Trial]
    rung: int
    """The rung of all of them."""
    about: str
    """Why, for people; "" where there is nothing to say."""


def plan(sweep: Sweep, results: List[Result], *, keep: int) -> Plan:
    """Return the trials to submit now: those that are missing or have failed, or the best ones on their next rung.

    Rungs are successive halving: K. Jamieson and A. Talwalkar, Non-stochastic best arm identification and
    hyperparameter optimization, AISTATS 2016.

    Args:
        sweep: whose trials have these ``results``.
        results: of all trials that may be submitted.
        keep: the best one of so many goes on to the next rung.
    """
    if not sweep.rungs:
        return Plan([result.state.entry for result in results if result.state.state in {"missing", "failed"}], 0, "")
    rung = max(result.state.entry.rung for result in results)
    here = [result for result in results if result.state.entry.rung == rung]
    again = [
        result.state.entry
        for result in here
        if result.state.state == "missing" or (result.state.state == "failed" and not result.state.refused)
    ]
    what = f"rung {rung + 1} of {len(sweep.rungs)}, epoch {sweep.rungs[rung]}"
    busy = sum(result.state.state in {"waiting", "running"} for result in here)
    if again or busy:
        return Plan(again, rung, f"{what}: {len(again) + busy} of {len(here)} trial(s) have not ended")
    if rung == len(sweep.rungs) - 1:
        return Plan([], rung, f"{what}: all trials have ended, and there is no further rung")
    points = ranked(here, sweep.goal)
    best = [point for point in points[: max(1, len(points) // keep)] if point.mean is not None]
    trials = [result.state.entry for point in best for result in point.results]
    about = f"{what}: ended; the best {len(best)} of {len(points)} point(s) go on to epoch {sweep.rungs[rung + 1]}"
    return Plan(trials, rung + 1, about if best else f"{what}: no trial has a {sweep.metric}, so none goes on")

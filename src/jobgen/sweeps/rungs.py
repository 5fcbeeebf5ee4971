"""Which trials are to be submitted: those that are missing or have failed, and on which rung.

With rungs, by successive halving: K. Jamieson and A. Talwalkar, Non-stochastic best arm identification and
hyperparameter optimization, AISTATS 2016.
"""

from __future__ import annotations

from typing import List, NamedTuple

from jobgen.sweeps.record import Sweep, Trial
from jobgen.sweeps.results import Result, ranked


class Plan(NamedTuple):
    """What to submit."""

    trials: List[Trial]
    rung: int
    """The rung of all of them."""
    about: str
    """Why, for people; "" where there is nothing to say."""


def plan(sweep: Sweep, results: List[Result], *, keep: int) -> Plan:
    """Return what is to be submitted now.

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

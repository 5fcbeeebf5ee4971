"""Section of a sweep: a folder with sweep.json (docs/reference/run-folder.md) and the runs of its trials."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec
from markupsafe import Markup

from slipway.report.figures import Curve, curves
from slipway.report.files.untrusted_folder import Folder
from slipway.report.html import number, render
from slipway.report.run_list import RunSet, below, read_description, read_runs
from slipway.report.run_page import RunSummary

FILE = "sweep.json"
MAX_TRIALS = 1000
BAD = {"failed", "crashed", "stopped"}


class Trial(msgspec.Struct, frozen=True):
    """A trial in sweep.json."""

    name: str
    run: str
    values: dict[str, str] = {}
    seed: int = 0
    rung: int = 0


@dataclasses.dataclass
class Candidate:
    """A combination of values, with one trial per seed."""

    values: dict[str, str]
    trials: list[tuple[Trial, RunSummary | None]] = dataclasses.field(default_factory=list)
    found: list[float] = dataclasses.field(default_factory=list)
    """The best value of the metric in each run that has recorded it."""

    @property
    def mean(self) -> float | None:
        """Mean of ``found``; None unless every run has a value and none has failed, crashed or been stopped."""
        complete = len(self.found) == len(self.trials) and all(run and run.state not in BAD for _, run in self.trials)
        return statistics.fmean(self.found) if complete else None

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds; None for a single value."""
        return statistics.stdev(self.found) if len(self.found) > 1 else None

    @property
    def rung(self) -> int:
        """The highest rung that its trials reached; the first is 0."""
        return max(trial.rung for trial, _ in self.trials)

    @property
    def name(self) -> str:
        """The values as text."""
        return ", ".join(f"{key} = {value}" for key, value in self.values.items()) or "the unchanged configuration"


def read_sweep(folder: Folder, *, name: str, first: int) -> RunSet:
    """Return the sweep in ``folder``; the sections of its runs have consecutive ids from run-``first``."""
    description = read_description(folder, FILE)
    metric = str(description.get("metric", "accuracy"))
    goal: Literal["max", "min"] = "min" if description.get("goal") == "min" else "max"
    trials = below(folder, FILE, description.get("trials"), Trial, what="trial", most=MAX_TRIALS)
    found = read_runs(folder, trials, first=first)
    candidates: dict[tuple[tuple[str, str], ...], Candidate] = {}
    for trial, run in found:
        candidate = candidates.setdefault(tuple(trial.values.items()), Candidate(trial.values))
        candidate.trials.append((trial, run))
    runs = [run for _, run in found if run]
    kinds = {kind for run in runs for kind, name in run.extremes if name == metric}
    kind = "validation" if "validation" in kinds else "train"
    for candidate in candidates.values():
        best = [run.extremes[kind, metric] for _, run in candidate.trials if run and (kind, metric) in run.extremes]
        candidate.found = [each[goal == "max"] for each in best]
    ranked = rank(list(candidates.values()), goal)
    section = render(
        "sweep.html",
        name=name,
        folder=str(folder.path),
        warnings=folder.warnings,
        metric=metric,
        goal=goal,
        keys=list(dict.fromkeys(key for candidate in ranked for key in candidate.values)),
        rows=ranked,
        epochs=_epochs(description.get("rungs")),
        seeds=max((len(candidate.trials) for candidate in ranked), default=1),
        advice=advise(ranked, metric=metric, goal=goal),
        figures=_figures(ranked, metric),
    )
    return RunSet(section, runs, folder.warnings)


def _epochs(rungs: object) -> list[int]:
    """Return the epochs at which the rungs of a sweep end; [] if it has no valid rungs."""
    try:
        return msgspec.convert(rungs, list[int])
    except msgspec.ValidationError:
        return []


def rank(candidates: Sequence[Candidate], goal: Literal["max", "min"]) -> list[Candidate]:
    """Return the candidates sorted from best to worst; those without a mean are last."""
    sign = -1 if goal == "max" else 1
    return sorted(candidates, key=lambda found: math.inf if found.mean is None else sign * found.mean)


def advise(ranked: Sequence[Candidate], *, metric: str, goal: Literal["max", "min"]) -> list[str]:
    """Return sentences about the best values, their certainty, and the values to try next.

    Args:
        ranked: the candidates, the best first.
        metric: the metric by which they are ranked.
        goal: whether higher (max) or lower (min) values of the metric are better.
    """
    known = [candidate for candidate in ranked if candidate.mean is not None]
    if not known:
        return [f"No advice: no trial has recorded {metric} yet."]
    best = known[0]
    said = [f"Take {best.name}: its {metric} of {number(best.mean)} is the {goal}imum of {len(known)}."]
    if len(known) > 1:
        said.append(_describe_certainty(best, known[1], metric))
    return [*said, *filter(None, (_next(key, best, known, goal) for key in best.values))]


def _describe_certainty(best: Candidate, second: Candidate, metric: str) -> str:
    assert best.mean is not None
    assert second.mean is not None
    ahead = abs(best.mean - second.mean)
    spreads = [found.spread for found in (best, second) if found.spread is not None]
    by = f"It is {number(ahead)} ahead of {second.name}"
    if not spreads:
        return f"{by}; the variation of {metric} between seeds is unknown: use --seeds 3 to measure it."
    error = math.hypot(*(found.spread / math.sqrt(len(found.found)) for found in (best, second) if found.spread))
    if ahead > 2 * error:
        return f"{by}, more than twice the standard error over the seeds."
    return f"{by}, less than twice the standard error over the seeds: more seeds are needed to distinguish them."


def _next(key: str, best: Candidate, known: Sequence[Candidate], goal: Literal["max", "min"]) -> str:
    """Return advice on the next values of ``key``: beyond the range if the best value is at its end, else around it."""
    values = sorted({value for found in known if (value := as_number(found.values.get(key))) is not None})
    at = as_number(best.values[key])
    if at is None or len(values) < 3:  # noqa: PLR2004 -- with two, both are at an end
        return ""
    if at in (values[0], values[-1]):
        return f"{key} = {best.values[key]} is at the end of the tested range: try values beyond it."
    place = values.index(at)
    low, high = values[place - 1], values[place + 1]
    beside = [found.mean for found in known if as_number(found.values.get(key)) in (low, high)]
    nearby = [mean for mean in beside if mean is not None]
    if best.mean is None or not nearby:
        return ""
    loss = abs(best.mean - (max if goal == "max" else min)(nearby))
    if best.spread is not None and loss < best.spread:
        return f"{key}: values between {low:g} and {high:g} are as good as {at:g}; a finer grid shows no difference."
    return f"{key}: refine between {low:g} and {high:g}."


def as_number(text: str | None) -> float | None:
    """Return ``text`` as a number; None if it is not a finite number."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _figures(ranked: Sequence[Candidate], metric: str) -> list[Markup]:
    """Return figures of the metric over each key with numeric values, with one dot per run."""
    drawn = []
    for key in dict.fromkeys(key for candidate in ranked for key in candidate.values):
        found = [
            (value, each)
            for candidate in ranked
            if (value := as_number(candidate.values.get(key))) is not None
            for each in candidate.found
        ]
        if len({value for value, _ in found}) > 1:
            found.sort()
            line = Curve("", [value for value, _ in found], [each for _, each in found])
            drawn.append(curves([line], title=f"best {metric} of each run", x=key, scattered=True))
    return [figure for figure in drawn if figure]

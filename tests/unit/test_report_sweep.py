"""``trainer report`` on sweeps: ranking, advice and display."""

import json
import re

import pytest

from messages import assert_warning
from report_folders import make_run, records, write
from report_page import report
from slipway.report.html import NOTHING
from slipway.report.run_page import RunSummary
from slipway.report.sweep import Candidate, Trial, advise, rank

BEST = " optim.lr = 0.1: "
"""Name of the folder of ``make_sweep``."""


def candidates(key, found, *, state="done"):
    """Return a candidate for each value of ``key``, with the metric of each of its runs."""
    made = []
    for value, metrics in found.items():
        trials = [
            (Trial(str(number), str(number)), RunSummary(str(number), "", state)) for number in range(len(metrics))
        ]
        made.append(Candidate({key: value}, trials, list(metrics)))
    return made


def test_candidates_are_ranked_best_first_and_incomplete_last():
    found = candidates("lr", {"0.1": [0.8, 0.9], "0.2": [0.9, 0.9], "0.3": [0.99]})
    found[2].trials *= 2  # one of which has no metric
    assert [each.values["lr"] for each in rank(found, "max")] == ["0.2", "0.1", "0.3"]
    assert [each.values["lr"] for each in rank(found, "min")] == ["0.1", "0.2", "0.3"]
    for state in ("failed", "crashed", "stopped"):
        assert candidates("lr", {"0.1": [0.8]}, state=state)[0].mean is None


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"0.1": [0.9], "0.2": [0.8], "0.3": [0.7]}, ["lr = 0.1: ", "accuracy", " 0.9 ", "maximum", " 3."]),
        ({"0.1": [0.9], "0.2": [0.8], "0.3": [0.7]}, ["lr = 0.1: ", "lr = 0.2", "lr = 0.1 "]),
        ({"0.1": [0.9], "0.2": [0.8]}, ["lr = 0.1: ", "--seeds 3"]),
        ({"0.1": [0.7], "0.2": [0.9], "0.3": [0.8]}, ["lr = 0.2: ", "lr: ", " 0.1 ", " 0.3."]),
        ({"0.1": [0.7, 0.9], "0.2": [0.8, 0.9], "0.3": [0.7, 0.8]}, ["0.05 ", "lr = 0.1", "less", "error"]),
        ({"0.1": [0.7, 0.71], "0.2": [0.9, 0.91], "0.3": [0.8, 0.81]}, ["0.1 ", "lr = 0.3", "more", "error"]),
        ({"0.1": [0.80, 0.90], "0.2": [0.81, 0.91], "0.3": [0.8, 0.9]}, ["lr: ", " 0.1 ", " 0.3 ", " 0.2"]),
        ({"adam": [0.7], "sgd": [0.9], "adamw": [0.8]}, ["lr = sgd: "]),
        ({}, ["No ", "accuracy"]),
    ],
)
def test_advice_names_best_value_certainty_and_next_values(found, words):
    said = " ".join(advise(rank(candidates("lr", found), "max"), metric="accuracy", goal="max"))
    assert re.search(".*".join(map(re.escape, words)), said), said


def make_sweep(path, *, seeds=1, more=(), changed=None, **head):
    """Make the folder of a sweep over four learning rates, the third of which is best.

    Its file has ``more`` trials. ``changed`` sets fields of trials by number.
    """
    trials = []
    for number, rate in enumerate(("0.001", "0.01", "0.1", "1")):
        for seed in range(seeds):
            name = f"{number * seeds + seed:03}"
            shift = abs(number - 2) / 10 + seed / 100
            make_run(path / name, found=records(shift=shift), lr=float(rate), seed=seed)
            trials.append(
                {"name": name, "run": name, "values": {"optim.lr": rate}, "seed": seed, "rung": 0, "job": "7_1"}
            )
    for number, change in (changed or {}).items():
        trials[number] |= change
    known = {"schema": 1, "kind": "sweep", "scheduler": "slurm", "metric": "accuracy", "goal": "max", "seeds": seeds}
    write(path / "sweep.json", {**known, "rungs": [], "axes": {}, "trials": [*trials, *more], **head})
    return path


def test_report_of_sweep_shows_best_first(tmp_path, capsys):
    page = report(tmp_path, make_sweep(tmp_path / "sweep"))
    assert re.search(r"<h2>sweep: .*\boptim\.lr</h2>", page.source)
    assert BEST in page.text
    assert re.search(r"\boptim\.lr: \D*\b0\.01\b\D+\b1\.", page.text)
    assert page.source.index(">002</a>") < page.source.index(">001</a>") < page.source.index(">000</a>")
    assert any("accuracy" in title.split() for title in page.figures())
    assert page.ids == [f"run-{number}" for number in range(1, 5)]
    assert capsys.readouterr().err == ""


def test_spread_over_seeds_is_shown(tmp_path):
    page = report(tmp_path, make_sweep(tmp_path / "sweep", seeds=3))
    assert ">±</th>" in page.source
    assert "0.01" in page.text


def test_lowest_loss_is_best_for_goal_min(tmp_path):
    page = report(tmp_path, make_sweep(tmp_path / "sweep", metric="loss", goal="min"))
    assert re.search(rf"{re.escape(BEST)}.*\bloss\b.*\bminimum\b\D+\b4\.", page.text)


@pytest.mark.parametrize(("rung", "shown"), [(1, "6"), (10**9, NOTHING), (-9, NOTHING)])
def test_epochs_of_each_trial_are_shown(tmp_path, rung, shown):
    page = report(tmp_path, make_sweep(tmp_path / "sweep", rungs=[2, 6], changed={2: {"rung": rung}}))
    epochs = re.findall(r'<td class="n">(\S+)</td><td class="runs"><a href="#run-', page.source)
    assert epochs == [shown, "2", "2", "2"]


# regression: only 64 KiB of the file were read, and the page had no trials
def test_sweep_file_over_64_kib_is_read_completely(tmp_path, capsys):
    names = [f"{number:040}" for number in range(4, 900)]
    more = [{"name": name, "run": name, "values": {"optim.lr": name}} for name in names]
    sweep = make_sweep(tmp_path / "sweep", more=more)
    assert (sweep / "sweep.json").stat().st_size > 1 << 16
    assert '899 <span class="state">' in report(tmp_path, sweep).source
    assert capsys.readouterr().err == ""


def test_trial_without_evaluation_has_no_result(tmp_path):
    sweep = make_sweep(tmp_path / "sweep", metric="loss", goal="min")
    record = {"kind": "train", "step": 1, "loss": 1e-6}
    write(sweep / "000" / "metrics.jsonl", json.dumps(record) + "\n")
    assert BEST in report(tmp_path, sweep).text


def test_trial_without_swept_key_is_accepted(tmp_path):
    assert BEST in report(tmp_path, make_sweep(tmp_path / "sweep", changed={0: {"values": {}}})).text


@pytest.mark.parametrize("rungs", ["x", {}, [1, None], 7])
def test_invalid_rungs_are_ignored(tmp_path, rungs):
    assert ">epochs</th>" not in report(tmp_path, make_sweep(tmp_path / "sweep", rungs=rungs)).source


def test_invalid_trials_are_omitted_and_reported(tmp_path, capsys):
    more = [{"name": "x", "run": "../x"}, 7, {"name": "later <b>", "run": "004", "values": {"a": "b"}}]
    page = report(tmp_path, make_sweep(tmp_path / "sweep", more=more))
    err = capsys.readouterr().err
    for number in (5, 6):
        assert_warning(err, "left-out", f"sweep.json: trial {number} ")
    assert 'later &lt;b&gt; <span class="state">' in page.source

"""``trainer report`` on scaling studies: computed values, advice and display."""

import datetime as dt
import json
import os
import re

import pytest

from messages import assert_warning
from report_folders import make_run, make_study, records, write
from report_page import report
from slipway.report.files.attempts import read_attempts
from slipway.report.files.series import Metrics
from slipway.report.files.shares import time_breakdown
from slipway.report.files.untrusted_folder import Folder
from slipway.report.scaling import Measured, advise, bottleneck, compare, difference


def points(*rates, group="ddp"):
    """Return points of 1, 2, 4... units with these rates, compared."""
    found = [
        Measured(f"p{2**number}", ranks=2**number, units=2**number, group=group, rate=rate, seconds=3600.0)
        for number, rate in enumerate(rates)
    ]
    compare(found)
    return found


def assert_in_order(words, said):
    assert re.search(".*".join(map(re.escape, words)), said), said


def test_speedup_efficiency_and_cost_of_points():
    one, two, four = points(100.0, 190.0, 300.0)
    assert (one.speedup, one.efficiency, one.cost) == (1.0, 1.0, 1.0)
    assert (two.speedup, two.ideal, two.efficiency) == (1.9, 2.0, 0.95)
    assert (four.efficiency, four.cost) == (0.75, 4.0)


def test_speedup_baseline_is_fastest_smallest_point_of_backend():
    found = [
        Measured("a", ranks=1, units=2, group="ddp", rate=100.0),
        Measured("b", ranks=2, units=2, group="ddp", rate=200.0),
        Measured("c", ranks=4, units=4, group="ddp", rate=300.0),
        Measured("d", ranks=4, units=4, group="horovod", rate=50.0),
        Measured("e", ranks=8, units=8, group="horovod"),
    ]
    compare(found)
    assert [point.speedup for point in found] == [0.5, 1.0, 1.5, 1.0, None]


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ((100, 190, 340, 400), ["p4: ", "p8", "18 %", "faster", "8 cores", "4."]),
        ((100, 190, 340, 300), ["p4: ", "p8", "12 %", "slower", "8 cores", "4."]),
        ((100, 190, 340), ["p4: ", "more", "cores"]),
        ((100, 110), ["p1: ", "p2", "10 %", "faster", "2 cores", "1."]),
        ((100,), ["No ", "cores", " 1 "]),
        ((None, None), ["No ", "cores", " 0 "]),
    ],
)
def test_advice_names_best_point_and_reason(rates, words):
    assert_in_order(words, advise(points(*rates), unit="cores", scaling="strong")[0])


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ({"data_share": 0.5, "communication": 0.1}, ["p2: ", "50 %", "--workers"]),
        ({"data_share": 0.1, "communication": 0.5}, ["p2: ", "50 %", "--grad-accum-steps"]),
        ({"data_share": 0.1, "communication": 0.1}, ["No ", "p2 ", "10 %", "10 %"]),
        ({"data_share": 0.1}, ["No ", "p2 ", "10 %"]),
        ({"data_share": 0.1, "speedup": 1.0, "ideal": 2.0}, ["p2 ", "10 %", "--scaling weak"]),
        ({"data_share": 0.1, "communication": 0.1, "speedup": 1.0, "ideal": 2.0}, ["p2 ", "10 %", "10 %", "efficien"]),
        ({}, ["p2 ", " not "]),
    ],
)
def test_bottleneck_of_point_is_described(point, words):
    said = bottleneck(Measured("p2", ranks=2, units=2, group="ddp", **point), scaling="strong")
    assert_in_order(words, said)
    assert said.count("%") == sum("%" in word for word in words)


# regression: the queue wait included the preflight and copies of image and data
@pytest.mark.parametrize(("seconds", "expected"), [(-30, -30), (3600, 0)], ids=["its job", "a copy"])
def test_attempt_begins_when_its_job_starts(tmp_path, seconds, expected):
    run = make_run(tmp_path / "run")
    started = dt.datetime.fromisoformat(json.loads((run / "run.json").read_text())["started"]).timestamp()
    write(run / "logs" / "1" / "job", "slurm 1\n")
    os.utime(run / "logs" / "1" / "job", (started + seconds, started + seconds))
    (attempt,) = read_attempts(Folder(run), last_record=0)
    assert attempt.began == started + expected


# regression: one slow moment of a study with four records per point was taken for communication
def test_step_time_ignores_outlier_records(tmp_path):
    found = [record for record in records(rate=1000.0, batch=64, every=5, data=0.05) if record["kind"] == "train"]
    for record in found[3:]:
        record["elapsed"] += 60.0
    shares = time_breakdown(Metrics(Folder(make_run(tmp_path / "run", found=found)), running=False))
    assert shares.seconds_per_step == pytest.approx(0.95 * 64 / 1000)
    assert shares.seconds_per_batch == pytest.approx(64 / 1000)


def test_communication_share_is_difference_to_single_rank():
    def point(ranks, seconds, waits=0.3, alike=(1, 32.0), group="ddp"):
        both = {"seconds_per_step": seconds, "seconds_per_batch": seconds + waits}
        return Measured(f"p{ranks}", ranks, ranks, group, alike=alike, **both)

    found = [point(1, 0.1), point(2, 0.2), point(2, 0.05), point(4, 0.2, alike=(1, 16.0))]
    found += [point(2, 0.2, group="horovod"), point(2, 0.2, 0.2), point(2, 0.2, 9.0)]
    compare(found)
    assert [each.communication for each in found] == [None, pytest.approx(0.2), 0.0, None, None, 0.0, 0.5]


def test_curves_are_compared_at_common_steps():
    found = difference({"a": {10: 1.0, 20: 0.5}, "b": {20: 0.6, 30: 0.1}, "c": {40: 9.0}})
    assert (found.largest, found.step, found.names) == (pytest.approx(0.1), 20, ("a", "b"))
    assert found.same
    assert difference({"a": {1: 1.0}, "b": {2: 1.0}}) is None


def test_report_of_strong_scaling_study(tmp_path, capsys):
    page = report(tmp_path, make_study(tmp_path / "study"))
    assert " r4-c1: " in page.text
    (said,) = re.findall(r"<p>([^<]*\bloss\b[^<]*)</p>", page.source)
    assert not re.search(r"\d", said)  # no difference, at no step
    figures = page.figures()
    assert figures[:4] == ["speed-up", "efficiency (%)", "validation loss", "validation accuracy (%)"]
    assert page.ids == ["run-1", "run-2", "run-3", "run-4"]
    assert re.search(r"\br8-c1\b[^.]*\b5 %[^.]*\bcommunication\b", page.text)
    assert page.source.count('<table class="shares">') == 4  # time spent per part
    assert "2 min 0 s" in page.text  # r2-c1 waited
    assert capsys.readouterr().err == ""


def test_report_of_weak_scaling_study_shows_curves(tmp_path):
    page = report(tmp_path, make_study(tmp_path / "study", scaling="weak"))
    assert re.search(r"<h2>study: .*\bweak\b", page.source)
    assert page.figures()[2:6] == ["validation loss"] * 2 + ["validation accuracy (%)"] * 2
    for figure in page.source.split("<figcaption>")[3:7]:
        assert all(f"r{ranks}-c1 from " in figure for ranks in (1, 2, 4, 8)), "a curve of each point"


def test_gpus_are_counted_if_runs_used_gpus(tmp_path):
    study = make_study(tmp_path / "study")
    for run in study.glob("r*-c1/run.json"):
        write(run, json.loads(run.read_text()) | {"launch": {"device": "cuda", "devices_per_rank": 2}})
    page = report(tmp_path, study)
    assert "GPU-hours" in page.text
    assert re.search(r"\b16 GPUs\b\D*\b8\.", page.text)


def test_invalid_study_points_are_omitted_and_reported(tmp_path, capsys):
    study = make_study(tmp_path / "study")
    (study / "link").symlink_to(study / "r1-c1")
    write(study / "r2-c1/metrics.jsonl", "{\n")
    description = json.loads((study / "study.json").read_text())
    description["points"] += [
        {"name": "<b>", "run": "../study/r1-c1", "ranks": 1},
        {"name": "x", "run": "/etc", "ranks": 1},
        {"name": "x", "run": "r1-c1", "ranks": 0},
        {"name": "x", "run": "r1-c1", "ranks": "2"},
        7,
        {"name": "link", "run": "link", "ranks": 1},
        {"name": "waits <i>", "run": "r16", "ranks": 16, "submitted": "soon", "later": True},
    ]
    write(study / "study.json", description)
    page = report(tmp_path, study)
    err = capsys.readouterr().err
    for number in range(5, 10):
        assert_warning(err, "left-out", f"study.json: point {number} ")
    assert_warning(err, "left-out", "r2-c1: metrics.jsonl: 1 ")
    assert 'waits &lt;i&gt;</td><td><span class="state">' in page.source
    assert page.ids == ["run-1", "run-2", "run-3", "run-4"]

"""Timeline of pipeline passes, and its figure."""

import time

import torch
from matplotlib.figure import Figure

from trainer.parallel.stages.schedule import Timed, Unit, by_stage, one_f_one_b, simulate
from trainer.parallel.stages.timeline import Timeline
from trainer.results.schedule_figure import draw_schedule

CPU = torch.device("cpu")


def test_timeline_measures_passes_in_issue_order():
    timeline = Timeline([CPU, CPU])
    with timeline.measure(Unit(0, "F", 0)):
        time.sleep(0.02)
    with timeline.measure(Unit(1, "F", 0)):
        pass
    first, second = timeline.passes()
    assert (first.unit, second.unit) == (Unit(0, "F", 0), Unit(1, "F", 0))
    assert 0 <= first.start < first.start + 0.02 <= first.end <= second.start <= second.end


def test_schedule_figure_shows_overlapped_and_measured_passes(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **_: drawn.append((figure, path)))
    orders = by_stage(one_f_one_b(2, 3), 2)
    one_by_one, now = [], 0.0
    for unit, _, _ in simulate(orders, lambda unit: 1.0 if unit.kind == "F" else 2.0):
        seconds = 0.001 if unit.kind == "F" else 0.002
        one_by_one.append(Timed(unit, now, now + seconds))
        now += seconds
    draw_schedule(one_by_one, ["cuda:0", "cuda:1"], tmp_path / "schedule.png", title="toy")
    ((figure, path),) = drawn
    assert path == tmp_path / "schedule.png"
    upper, lower = figure.axes
    assert len(upper.patches) == len(lower.patches) == 12
    assert "12.0 ms, stages idle 25 % of it" in upper.get_title(loc="left")
    assert "18.0 ms, stages idle 50 % of it" in lower.get_title(loc="left")
    assert [label.get_text() for label in upper.get_yticklabels()] == ["stage 0, cuda:0", "stage 1, cuda:1"]
    assert {text.get_text() for text in lower.texts} == {"1", "2", "3"}

"""Goodput: how a run's attempts spent their time."""

import json
import re
import time

import pytest

from slipway.base.goodput import EVALUATED, LOST, MEANINGS, SAVED, STARTED, TRAINED, WAITED, describe, parse_goodput
from slipway.base.goodput import read_goodput as read
from slipway.run.goodput_clock import Clock


def measured(attempt, moment, step, *, started=2.0, trained=0.0, concluded=False):
    line = {"attempt": attempt, "time": moment, "step": step, TRAINED: trained, WAITED: 0.0, EVALUATED: 0.0}
    return line | {SAVED: 0.0, STARTED: started} | ({"concluded": True} if concluded else {})


def parsed(*lines):
    return parse_goodput("".join(json.dumps(line) + "\n" for line in lines).encode())


DEAD = (
    {"attempt": 1, "began": 100.0, "nodes": 2, "spares": 1},
    measured(1, 105.0, 0),
    measured(1, 115.0, 10, trained=10.0),
    measured(1, 125.0, 20, trained=20.0),
)
"""An attempt that took 3 s until rank 0 started, 2 s until its first step, and saved twice."""


class TestParseGoodput:
    def test_crashed_attempt_lost_time_since_last_save(self):
        (spent,) = parsed(*DEAD, {"attempt": 1, "ended": 132.0})
        assert (spent.attempt, spent.nodes, spent.spares, spent.total) == (1, 2, 1, 32.0)
        assert spent.seconds == dict.fromkeys(MEANINGS, 0.0) | {STARTED: 5.0, TRAINED: 20.0, LOST: 7.0}

    def test_time_of_save_not_resumed_from_is_lost(self):
        first, second = parsed(*DEAD, {"attempt": 1, "ended": 132.0}, measured(2, 140.0, 10))
        assert (first.seconds[TRAINED], first.seconds[LOST]) == (10.0, 17.0)
        assert second.seconds[STARTED] == 2.0

    def test_concluded_attempt_lost_no_time(self):
        end = [measured(1, 126.0, 20, trained=20.0, concluded=True), {"attempt": 1, "ended": 129.0}]
        (spent,) = parsed(*DEAD, *end)
        assert (spent.seconds[STARTED], spent.seconds[LOST], spent.total) == (9.0, 0.0, 29.0)

    def test_startup_time_is_described_by_phase(self):
        (spent,) = parsed(*DEAD, {"attempt": 1, "start": {"imports": 1.8, "first step": 0.25}})
        assert spent.start == {"imports": 1.8, "first step": 0.25}
        total, _, parts = describe([spent]).rpartition(";")[2].partition("(")
        assert re.findall(r"[\d.]+", total) == ["2.0"]
        assert re.findall(r"(\w[a-z ]+) ([\d.]+)", parts) == [("imports", "1.8"), ("first step", "0.2")]

    @pytest.mark.parametrize("start", [1.0, None, [1.0], {"imports": "long"}, {"imports": float("inf")}, {"a": True}])
    def test_malformed_startup_times_are_ignored(self, start):
        (spent,) = parsed(*DEAD, {"attempt": 1, "start": start})
        assert spent.start == {}
        assert spent.total == 25.0

    def test_attempt_with_only_startup_times_is_omitted(self):
        assert parsed({"attempt": 1, "start": {"imports": 1.0}}) == []

    def test_end_without_attempt_number_ends_last_attempt(self):
        (spent,) = parsed(*DEAD, {"ended": 200.0})
        assert spent.seconds[LOST] == 75.0

    def test_attempt_without_started_ranks_lost_all_time(self):
        lines = [{"attempt": 2, "began": 200.0, "nodes": 2, "spares": 1}, {"attempt": 2, "ended": 232.0}]
        _, spent = parsed(*DEAD, *lines)
        assert spent.seconds == dict.fromkeys(MEANINGS, 0.0) | {LOST: 32.0}

    # regression: a successful script without a Session had lost 100 % of its time
    def test_run_that_measured_nothing_has_no_goodput(self):
        assert parsed(DEAD[0], {"attempt": 1, "ended": 132.0}) == []
        assert len(parsed(DEAD[0], measured(1, 105.0, 0), {"attempt": 1, "ended": 132.0})) == 1

    def test_running_attempt_counts_only_recorded_time(self):
        (spent,) = parsed(*DEAD)
        assert (spent.total, spent.seconds[LOST]) == (25.0, 0.0)

    @pytest.mark.parametrize(
        "line",
        [
            b"\xff{",
            b"[1]",
            b"null",
            b"[" * 5000,
            b'{"attempt": true, "ended": 1}',
            b'{"attempt": 1, "ended": NaN}',
            b'{"attempt": 1, "ended": "x"}',
            b'{"attempt": -1, "ended": 1}',
            b'{"attempt": 1, "step": 3}',
            b'{"attempt": 1, "time": 3}',
            b'{"attempt": 1, "began": 1, "nodes": 2}',
            b'{"ended": 1e999}',
        ],
    )
    def test_malformed_goodput_lines_are_ignored(self, line):
        lines = [json.dumps(line).encode() for line in DEAD]
        assert parse_goodput(b"\n".join([line, *lines, line])) == parsed(*DEAD)
        assert parse_goodput(line) == []

    def test_missing_goodput_file_or_folder_reads_as_empty(self, tmp_path):
        assert read(tmp_path / "none") == read(tmp_path) == []


class TestDescribe:
    def test_description_sums_time_of_attempts(self):
        spent = parsed(*DEAD, {"attempt": 1, "ended": 130.0}, measured(2, 162.0, 20, started=0.0, trained=30.0))
        parts = describe(spent).split(";")
        assert re.findall(r"[\d.]+", parts[0]) == ["1.0", "2", "83.3", "8.3", "8.3"]
        assert re.findall(r"% (\w+)", parts[0]) == [TRAINED, STARTED, LOST]
        assert re.findall(r"[\d.]+", parts[1]) == ["0.01"]

    def test_description_of_no_attempts_is_empty(self):
        assert describe([]) == ""


class TestClock:
    def test_clock_assigns_all_time_to_parts(self, tmp_path):
        clock = Clock(tmp_path / "goodput.jsonl", attempt=3, step=7)
        began = time.monotonic()
        for part in (TRAINED, EVALUATED, TRAINED):
            clock.enter(part)
            time.sleep(0.1)
        clock.waited(0.05)
        before = clock.enter(SAVED)
        clock.write(9)
        clock.enter(before)
        clock.write(9, concluded=True)
        clock.close()
        took = time.monotonic() - began
        (spent,) = read(tmp_path / "goodput.jsonl")
        assert (spent.attempt, before) == (3, TRAINED)
        assert spent.seconds[TRAINED] >= 0.145
        assert spent.seconds[WAITED] == 0.05
        assert spent.seconds[EVALUATED] >= 0.095
        assert 0.295 <= spent.total - spent.seconds[STARTED] <= took + 0.01

    def test_clock_counts_started_time_from_process_start(self, tmp_path):
        Clock(tmp_path / "goodput.jsonl", attempt=1, step=0).close()
        line = json.loads((tmp_path / "goodput.jsonl").read_text())
        assert 0 < line[STARTED] < 3600
        assert abs(line["time"] - time.time()) < 60

"""Metrics and figures of a run."""

import csv
import errno
import json
import os
import re
import struct
import time

import pytest
import torch
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from messages import assert_warning, slugs
from slipway.base.errors import is_retryable
from slipway.base.files import LineFile
from slipway.run.metrics import JsonLines, read_records
from slipway.run.trackers import TensorBoardEvents, TrackedRun
from support import file_size_limit
from trainer.engine.evaluation import Evaluation
from trainer.results.figures import draw_confusion, draw_curves
from trainer.results.summary import write_classes, write_confusion

CLASSES = ("ant", "bee", "cat")
EVALUATION = Evaluation(
    confusion=torch.tensor([[5, 1, 0], [2, 8, 0], [0, 0, 0]]),
    loss_sum=8.0,
    in_top5=16,
    bad=1,
    predicted=torch.tensor([0, 0, 1]),
)


def train_record(step):
    return {
        "kind": "train",
        "step": step,
        "epoch": step / 10,
        "elapsed": 2.0 * step,
        "loss": 1 / (1 + step),
        "lr": 0.1,
        "samples_per_second": 100.0,
    }


def check_record(step):
    return {
        "kind": "validation",
        "step": step,
        "epoch": step / 10,
        "elapsed": 2.0 * step,
        "loss": 0.5,
        "accuracy": 0.9,
        "top5": 1.0,
    }


def write(path, *written, step=0):
    """Write records as an attempt that resumes from ``step`` does."""
    writer = JsonLines(path, step=step)
    for record in written:
        writer.write(record)
    writer.close()


class TestJsonLines:
    def test_each_record_is_written_as_line_immediately(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        writer = JsonLines(path, step=0)
        writer.write(train_record(1))
        assert [json.loads(line) for line in path.read_text().splitlines()] == [train_record(1)]
        writer.write(check_record(1))
        writer.close()
        assert read_records(path) == [train_record(1), check_record(1)]

    def test_resume_drops_records_after_checkpoint_step(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        write(path, *map(train_record, (1, 2, 3, 4)))
        write(path, train_record(3), step=2)
        assert [record["step"] for record in read_records(path)] == [1, 2, 3]

    def test_truncated_last_line_is_dropped(self, tmp_path):
        path = tmp_path / "metrics.jsonl"
        path.write_text(json.dumps(train_record(1)) + "\n" + json.dumps(train_record(2))[:-7])
        assert read_records(path) == [train_record(1)]
        write(path, train_record(2), step=2)
        assert read_records(path) == [train_record(1), train_record(2)]

    def test_damaged_lines_are_dropped_and_original_file_is_kept(self, tmp_path, caplog):
        path = tmp_path / "metrics.jsonl"
        good = [json.dumps({"kind": "train", "step": step, "loss": 1.0}) for step in (1, 2)]
        said = json.dumps({"kind": "note", "step": 1, "text": "lower rate"})
        for number, bad in enumerate(
            ["\0\0", "[1]", '{"step": 1}', '{"kind": "train", "step": "1"}', "[" * 100_000], 1
        ):
            damaged = "\n".join([good[0], bad, said, good[1], '{"cut off']) + "\n"
            path.write_text(damaged)
            JsonLines(path, step=9).close()
            assert path.read_text().splitlines() == [good[0], said, good[1]]
            assert (tmp_path / f"metrics.jsonl.damaged.{number}").read_text() == damaged
            assert_warning(caplog.messages[-1], "damaged-metrics", 1, path, f"{path.name}.damaged.{number}")
        assert [record["step"] for record in read_records(path)] == [1, 2], "lines with numbers"

    def test_lines_rejected_by_full_disk_are_written_later(self, tmp_path, caplog):
        path = tmp_path / "metrics.jsonl"
        writer = JsonLines(path, step=0)
        with file_size_limit(200):
            for step in (1, 2, 3):
                writer.write(train_record(step))
        assert path.stat().st_size == 200
        assert [record["step"] for record in read_records(path)] == [1]
        writer.write(train_record(4))
        assert read_records(path) == [train_record(step) for step in (1, 2, 3, 4)]
        assert slugs(caplog.text) == ["cannot-append", "cannot-append"]
        assert_warning(caplog.messages[0], "cannot-append", path, os.strerror(errno.EFBIG))
        assert_warning(caplog.messages[1], "cannot-append", path)
        assert not re.search(r"\d+ lines", caplog.messages[1])

    def test_lines_beyond_full_disk_buffer_are_dropped_and_counted(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr("slipway.base.files.MAX_UNWRITTEN_BYTES", 300)
        lines = LineFile(tmp_path / "lines")
        with file_size_limit(100):
            for number in range(100):
                lines.append(f"{number:09d}")
        lines.append("the last")
        lines.close()
        written = (tmp_path / "lines").read_text().splitlines()
        assert written == [f"{number:09d}" for number in range(40)]  # 10 on disk and 30 in memory
        assert_warning(caplog.messages[-1], "cannot-append", tmp_path / "lines", 61)

    def test_close_raises_if_disk_stays_full(self, tmp_path):
        writer = JsonLines(tmp_path / "metrics.jsonl", step=0)
        with file_size_limit(200):
            for step in (1, 2):
                writer.write(train_record(step))
            with pytest.raises(OSError, match=os.strerror(errno.EFBIG)) as error:
                writer.close()
        assert error.value.errno == errno.EFBIG
        assert not is_retryable(error.value)

    def test_fifo_as_metrics_file_raises_without_blocking(self, tmp_path):
        os.mkfifo(tmp_path / "metrics.jsonl")
        with pytest.raises(OSError, match=r"metrics\.jsonl") as error:
            JsonLines(tmp_path / "metrics.jsonl", step=0)
        assert error.value.errno == errno.EINVAL

    def test_missing_metrics_file_has_no_records(self, tmp_path):
        assert read_records(tmp_path / "gone") == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_tensorboard_on_full_disk_stops_with_warning(tmp_path, caplog):
    writer = TensorBoardEvents(TrackedRun(tmp_path, 0, {}))
    with file_size_limit(300):
        deadline = time.monotonic() + 300
        while not caplog.records and time.monotonic() < deadline:
            writer.write(train_record(1))
            time.sleep(0.01)  # its thread writes
        writer.write(train_record(2))
    writer.end(complete=True)
    assert slugs(caplog.text) == ["tracker-ended"]
    assert_warning(caplog.text, "tracker-ended", "TensorBoard", os.strerror(errno.EFBIG), "metrics.jsonl")


def test_resumed_tensorboard_hides_values_after_checkpoint_step(tmp_path):
    first = TensorBoardEvents(TrackedRun(tmp_path, 0, {}))
    for step in (1, 2, 3):
        first.write(train_record(step))
    first.end(complete=True)
    second = TensorBoardEvents(TrackedRun(tmp_path, 2, {}))
    second.write(train_record(3) | {"loss": 7.0})
    second.write(check_record(3))
    second.end(complete=True)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    curve = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert curve == [(1, 0.5), (2, pytest.approx(1 / 3)), (3, 7.0)]
    assert [event.value for event in events.Scalars("validation/accuracy")] == [pytest.approx(0.9)]


class TestTables:
    @staticmethod
    def rows(path):
        with path.open(newline="") as file:
            return list(csv.reader(file))

    def test_confusion_csv_has_row_and_column_totals(self, tmp_path):
        write_confusion(EVALUATION, CLASSES, tmp_path / "confusion.csv")
        assert self.rows(tmp_path / "confusion.csv") == [
            ["true \\ predicted", "ant", "bee", "cat", "total"],
            ["ant", "5", "1", "0", "6"],
            ["bee", "2", "8", "0", "10"],
            ["cat", "0", "0", "0", "0"],
            ["total", "7", "9", "0", "16"],
        ]

    def test_classes_csv_has_recall_and_precision_per_class(self, tmp_path):
        write_classes(EVALUATION, CLASSES, tmp_path / "classes.csv")
        header, *rows = self.rows(tmp_path / "classes.csv")
        assert header == ["class", "samples", "recall", "precision"]
        assert [row[:2] for row in rows] == [["ant", "6"], ["bee", "10"], ["cat", "0"]]
        assert [float(value) for value in rows[0][2:]] == pytest.approx([5 / 6, 5 / 7])
        assert [float(value) for value in rows[1][2:]] == pytest.approx([0.8, 8 / 9])
        assert rows[2][2:] == ["nan", "nan"], "a class without samples has no values"

    def test_class_names_with_commas_and_quotes_are_escaped_in_csv(self, tmp_path):
        names = ("a,b", 'c"d', "e\nf")
        write_confusion(EVALUATION, names, tmp_path / "confusion.csv")
        assert [row[0] for row in self.rows(tmp_path / "confusion.csv")[1:4]] == list(names)


class TestFigures:
    @staticmethod
    def size(path):
        """Return width and height of a PNG from its header."""
        data = path.read_bytes()
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        return struct.unpack(">II", data[16:24])

    @pytest.mark.parametrize(
        "records",
        [
            [record for step in range(1, 20) for record in (train_record(step), check_record(step))],
            [train_record(1)],
            [check_record(1)],
            [],
        ],
        ids=["whole run", "one step", "validation only", "nothing"],
    )
    def test_curves_are_drawn_from_any_records(self, tmp_path, records):
        draw_curves(records, tmp_path / "curves.png", title="mlp on digits")
        assert self.size(tmp_path / "curves.png") == (1200, 840)

    def test_curves_show_loss_and_accuracy_by_epoch(self, tmp_path, monkeypatch):
        drawn = []
        monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
        steps = range(1, 4)
        draw_curves([record(step) for record in (train_record, check_record) for step in steps], tmp_path, title="")
        axes = {axes.get_ylabel(): axes for axes in drawn[0].axes if axes.get_xlabel() == "epoch"}
        loss = {line.get_label(): line.get_xydata().tolist() for line in axes["cross-entropy (nats)"].lines}
        assert loss == {
            "train": [[step / 10, 1 / (1 + step)] for step in steps],
            "validation": [[step / 10, 0.5] for step in steps],
        }
        error = axes["validation error (%)"].lines[0].get_xydata()
        assert error.tolist() == [[step / 10, pytest.approx(10)] for step in steps]

    def test_more_records_give_larger_curve_figure(self, tmp_path):
        for name, steps in (("few.png", 2), ("many.png", 40)):
            records = [record for step in range(1, steps) for record in (train_record(step), check_record(step))]
            draw_curves(records, tmp_path / name, title="")
        assert (tmp_path / "many.png").stat().st_size > (tmp_path / "few.png").stat().st_size

    @pytest.mark.parametrize("count", [1, 3, 31, 120])
    def test_confusion_figure_grows_with_classes_up_to_limit(self, tmp_path, count):
        evaluation = Evaluation(
            confusion=torch.eye(count, dtype=torch.int64) * 9,
            loss_sum=0.0,
            in_top5=0,
            bad=0,
            predicted=torch.tensor([]),
        )
        draw_confusion(evaluation, [f"class {index}" for index in range(count)], tmp_path / "confusion.png")
        width, height = self.size(tmp_path / "confusion.png")
        assert (width, height) == (height + 120, height)
        assert 600 <= height <= 2400

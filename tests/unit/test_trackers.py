"""Experiment trackers of a session: what they record over all attempts, and that their failures do not end a run."""

import json
import random
import sys
import threading
import types

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from attempts import Attempt
from messages import assert_warning, refused, slugs
from slipway import Session, Stopped
from slipway.base.environment import read_environment
from slipway.run import trackers
from slipway.run.status import read_status
from slipway.run.trackers import Background, named_trackers

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


@pytest.fixture(autouse=True)
def no_tracker_in_the_environment(monkeypatch):
    for name in ("SLIPWAY_TRACKERS", "WANDB_MODE", "WANDB_NAME", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)


def train(folder, *, stop_at=None, steps=4, **options):
    """Train with one record per step and one of a validation."""
    attempt = Attempt(folder, stop_at)
    with attempt.open(log_interval=1, **options) as session:
        for step in session.steps(steps):
            session.log(loss=float(step))
            attempt.update()
        session.metrics(accuracy=0.5)


def train_in_two_attempts(folder, **options):
    with pytest.raises(Stopped):
        train(folder, stop_at=2, **options)
    train(folder, **options)


LOSSES = [(1, 0.0), (2, 1.0), (3, 2.0), (4, 3.0)]


def test_tensorboard_shows_run_of_two_attempts(tmp_path):
    train_in_two_attempts(tmp_path / "run", trackers=("tensorboard",))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("train/loss")] == LOSSES
    assert [(event.step, event.value) for event in events.Scalars("validation/accuracy")] == [(4, 0.5)]


def test_trackers_are_read_from_slipway_trackers_variable(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPWAY_TRACKERS", " tensorboard,")
    train(tmp_path / "run")
    assert (tmp_path / "run" / "tensorboard").is_dir()
    assert read_environment({"SLIPWAY_TRACKERS": "wandb, mlflow"}).trackers == "wandb, mlflow"
    assert named_trackers(["wandb", "tensorboard"], "mlflow, wandb,") == ["wandb", "tensorboard", "mlflow"]


def test_unknown_tracker_or_missing_library_is_refused_before_run(tmp_path, monkeypatch):
    with refused("unknown-tracker", "'tensorbord'", "tensorboard", "wandb", "mlflow", code=78):
        train(tmp_path / "run", trackers=("tensorbord",))
    (tmp_path / "wandb").mkdir()  # in the state that a run leaves: no package
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name, package in [("wandb", "wandb"), ("mlflow", "mlflow-skinny")]:
        monkeypatch.delitem(sys.modules, name, raising=False)
        with refused("tracker-not-installed", name, f"pip install {package}."):
            train(tmp_path / "run", trackers=name)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


class Fake:
    """A backend with the methods that a test provides, which keeps its records."""

    def __init__(self, **methods):
        self.seen = []
        self.__dict__.update(methods)

    def write(self, record):
        self.seen.append(record)

    def end(self, *, complete):
        self.seen.append(complete)


def fail(*_, **__):
    raise SystemExit("no such\nserver")


def hang(*_, **__):
    threading.Event().wait()


@pytest.mark.parametrize("method", ["start", "write", "end"])
@pytest.mark.parametrize("trouble", [fail, hang])
def test_failing_or_hanging_tracker_does_not_end_run(method, trouble, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(trackers, "START_LIMIT", 0.1)
    monkeypatch.setattr(trackers, "END_LIMIT", 0.1)
    make = trouble if method == "start" else lambda _: Fake(**{method: trouble})
    monkeypatch.setitem(trackers.KINDS, "tensorboard", trackers.TrackerKind(make, "tensorboard", "tensorboard"))
    train(tmp_path / "run", trackers="tensorboard")
    assert read_status(tmp_path / "run").verdict == "done 4 complete"
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 5
    said = "\n".join(text for text in caplog.messages if "tensorboard" in text)
    if trouble is fail:
        assert slugs(said) == ["tracker-ended"]
        assert_warning(said, "tracker-ended", "no such server", "metrics.jsonl")
    else:
        assert slugs(said) == ["tracker-silent"] * (2 if method == "start" else 1)


def test_records_written_while_tracker_starts_are_kept(monkeypatch):
    monkeypatch.setattr(trackers, "START_LIMIT", 0.01)
    fake, ready = Fake(), threading.Event()
    tracker = Background("slow", lambda: (ready.wait(), fake)[1])
    tracker.write({"step": 1})
    ready.set()
    tracker.end(complete=True)
    tracker.end(complete=False)
    assert fake.seen == [{"step": 1}, True]


def test_script_error_marks_tracker_run_incomplete(tmp_path, monkeypatch):
    fake = Fake()
    monkeypatch.setitem(
        trackers.KINDS, "tensorboard", trackers.TrackerKind(lambda _: fake, "tensorboard", "tensorboard")
    )
    with pytest.raises(TypeError), Session(model=nn.Linear(1, 1), folder=tmp_path / "run", trackers="tensorboard"):
        raise TypeError
    assert fake.seen == [False]


def test_wandb_is_offline_by_default_and_keeps_run_id(tmp_path, monkeypatch):
    """With a stub library that keeps its arguments; the next test needs the real one."""
    begun, logged, ended = [], [], []
    run = types.SimpleNamespace(
        log=lambda numbers, *, step: logged.append((step, numbers)), finish=lambda **given: ended.append(given)
    )
    library = types.ModuleType("wandb")
    library.__spec__ = types.SimpleNamespace(origin="wandb/__init__.py")
    library.Settings = lambda **given: types.SimpleNamespace(init_timeout=0, given=given)
    library.init = lambda **given: begun.append(given) or run
    monkeypatch.setitem(sys.modules, "wandb", library)
    train_in_two_attempts(tmp_path / "run", trackers="wandb")
    monkeypatch.setenv("WANDB_MODE", "online")
    train(tmp_path / "run", steps=5, trackers="wandb")
    assert [given["mode"] for given in begun] == ["offline", "offline", "online"]
    assert {given["id"] for given in begun} == {json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"]}
    assert begun[0]["settings"].given == {"console": "off", "init_timeout": trackers.START_LIMIT}
    assert [(step, numbers["train/loss"]) for step, numbers in logged if "train/loss" in numbers] == [*LOSSES, (5, 4.0)]
    assert ended[-1] == {"exit_code": 0}


def test_installed_wandb_uses_one_id_for_all_attempts(tmp_path):
    pytest.importorskip("wandb")
    train_in_two_attempts(tmp_path / "run", trackers="wandb")
    identity = json.loads((tmp_path / "run" / "trackers.json").read_text())["wandb"]
    files = list((tmp_path / "run" / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb"))
    assert len(files) >= 1  # attempts within one second share a folder


def test_installed_mlflow_shows_one_run_over_all_attempts(tmp_path):
    mlflow = pytest.importorskip("mlflow")
    train_in_two_attempts(tmp_path / "run", trackers="mlflow")
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "run" / "mlruns").as_uri())
    (run,) = client.search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    history = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(metric.step, metric.value) for metric in history] == LOSSES
    assert run.data.metrics["validation/accuracy"] == 0.5


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_installed_trackers_do_not_draw_from_global_generators(name, tmp_path):
    pytest.importorskip(name)
    drawn = []
    for given in ((), name):
        train(tmp_path / f"run{len(drawn)}", trackers=given)
        drawn.append((random.random(), torch.rand(1).item()))
    assert drawn[0] == drawn[1]

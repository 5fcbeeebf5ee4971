"""Consecutive sessions of one process: a stop request that arrives too late for one session stops the next."""

import os
import signal

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from messages import refused
from slipway import Session, Stopped
from slipway.base.stop import SIGNALS, Reason, StopRequest
from slipway.run.status import read_status
from slipway.script import identity

pytestmark = pytest.mark.usefixtures("agree_after_each_step")

DATA = TensorDataset(torch.arange(8.0)[:, None])


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Return a function that makes the test count as a new process without sessions."""

    def begin():
        monkeypatch.setattr(identity, "process", identity.Process())
        monkeypatch.setattr(StopRequest, "carried_over", Reason.NONE)

    begin()
    return begin


def signalled(number):
    return lambda _session: os.kill(os.getpid(), number)


def write_stop(session):
    (session.folder / "STOP").write_text("user\n")


class Folds:
    """A cross-validation with a model and a session per fold."""

    def __init__(self, folder):
        self.folder, self.results, self.bodies = folder, [], []

    def train(self, fold, *, asked_at=None, ask=None, epochs=1):
        """Train ``fold``; call ``ask`` in the validation of an epoch."""
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with Session(model=model, optimizer=optimizer, folder=self.folder / f"fold{fold}") as session:
            for epoch in session.epochs(epochs):
                for (inputs,) in session.batches(DataLoader(DATA, 4, shuffle=True)):
                    self.bodies.append((fold, epoch))
                    optimizer.zero_grad()
                    model(inputs).square().mean().backward()
                    optimizer.step()
                if epoch == asked_at:
                    ask(session)
        self.results.append([parameter.item() for parameter in model.parameters()])
        return self

    def run(self, folds=2, **options):
        torch.manual_seed(0)
        for fold in range(folds):
            self.train(fold, **(options if fold == 0 else {}))
        return self

    def verdict(self, fold):
        return read_status(self.folder / f"fold{fold}").verdict


@pytest.mark.parametrize(
    ("ask", "reason"), [(signalled(signal.SIGUSR1), "time-limit"), (write_stop, "user")], ids=["SIGUSR1", "STOP"]
)
def test_stop_after_last_step_of_session_stops_next_session(ask, reason, tmp_path):
    folds = Folds(tmp_path)
    with pytest.raises(Stopped) as stopped:
        folds.run(asked_at=0, ask=ask)
    assert (stopped.value.code, stopped.value.reason.word) == (75, reason)
    assert [folds.verdict(fold) for fold in range(2)] == ["done 2 complete", f"stopped 0 {reason}"]
    assert folds.bodies == [(0, 0), (0, 0)]


def test_folds_stopped_in_between_resume_with_same_results(tmp_path, new_process):
    whole = Folds(tmp_path / "whole").run()
    new_process()
    first, second = Folds(tmp_path / "run"), Folds(tmp_path / "run")
    with pytest.raises(Stopped):
        first.run(asked_at=0, ask=signalled(signal.SIGTERM))
    new_process()
    assert second.run().results == whole.results
    assert first.bodies + second.bodies == whole.bodies


def test_stop_that_ended_session_does_not_stop_next_session(tmp_path):
    folds = Folds(tmp_path)
    with pytest.raises(Stopped):
        folds.train(0, asked_at=0, ask=signalled(signal.SIGTERM), epochs=2)
    assert folds.train(1).verdict(1) == "done 2 complete"


def test_pending_stop_stops_next_opened_session_at_saved_step(tmp_path):
    folds = Folds(tmp_path)
    with pytest.raises(Stopped):
        folds.train(1, asked_at=0, ask=signalled(signal.SIGTERM), epochs=2)
    folds.train(0, asked_at=0, ask=signalled(signal.SIGTERM))
    with refused("folder-used-twice"):
        folds.train(0)
    with pytest.raises(Stopped):
        folds.train(1, epochs=2)
    assert folds.verdict(1) == "stopped 2 signal"
    assert folds.train(1, epochs=2).bodies.count((1, 1)) == 2


def test_late_stop_without_next_session_restores_signal_handlers(tmp_path):
    before = [signal.getsignal(number) for number in SIGNALS]
    assert Folds(tmp_path).train(0, asked_at=0, ask=signalled(signal.SIGTERM)).verdict(0) == "done 2 complete"
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_random_numbers_after_session_are_same_if_run_was_complete(tmp_path, new_process):
    drawn = []
    for seed in range(2):
        torch.manual_seed(seed)
        Folds(tmp_path).train(0)
        drawn.append(torch.rand(2).tolist())
        new_process()
    assert drawn[0] == drawn[1]

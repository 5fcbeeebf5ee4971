"""``slipway.peek``: where a run stands, before its session opens."""

import os
import signal
from contextlib import suppress

import pytest
import torch
from torch import nn

import slipway
from messages import refused
from slipway import Session, Stopped


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    monkeypatch.setattr("slipway.agreement.VOTE_INTERVAL", 0)
    for name in ("RUN_DIR", "TRAINER_ATTEMPT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def train(folder, *, epochs=3, stop_at=None):
    """Train with three batches in an epoch; return where the session began."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with suppress(Stopped), Session(model=model, optimizer=optimizer, folder=folder, keep=9) as session:
        began = session.epoch, session.step
        for _ in session.epochs(epochs):
            for _ in session.batches([1, 2, 3]):
                if session.step + 1 == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                model(torch.ones(1, 1)).sum().backward()
                optimizer.step()
    return began


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, None])
def test_it_is_where_the_session_will_begin(stop_at, tmp_path):
    assert slipway.peek(tmp_path / "run") is None
    train(tmp_path / "run", stop_at=stop_at)
    before = sorted(tmp_path.rglob("*"))
    found = slipway.peek(tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before
    assert (found.epoch, found.step) == found == train(tmp_path / "run")


def test_the_folder_is_by_default_that_of_the_session(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(None, stop_at=4)
    assert slipway.peek() == (1, 4)
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "job"))
    assert slipway.peek() is None
    train(None, stop_at=2)
    assert slipway.peek() == (0, 2)


def test_a_damaged_manifest_is_passed_over(tmp_path):
    train(tmp_path)
    checkpoints = sorted((tmp_path / "checkpoints").glob("step_*"), reverse=True)
    for path, expected in zip(checkpoints, [(2, 6), (1, 3)], strict=False):
        (path / "manifest.json").write_text("{}")
        assert slipway.peek(tmp_path) == expected
    (checkpoints[-1] / "manifest.json").unlink()
    with refused("damaged-checkpoint", len(checkpoints)):
        slipway.peek(tmp_path)


def test_a_checkpoint_whose_replacement_was_killed_counts(tmp_path):
    train(tmp_path, stop_at=4)
    newest = tmp_path / "checkpoints" / "step_00000004"
    hidden = newest.rename(newest.with_name(".step_00000004.replaced.17"))
    assert slipway.peek(tmp_path) == (1, 4)
    assert hidden.exists()
    assert train(tmp_path) == (1, 4)


def test_it_reads_no_tensors(tmp_path):
    train(tmp_path, stop_at=4)
    for file in tmp_path.rglob("*.safetensors"):
        file.write_bytes(b"")
    assert slipway.peek(tmp_path) == (1, 4)

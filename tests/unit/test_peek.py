"""``slipway.peek``: the position of a run before its session opens."""

import os
import shutil
import signal
from contextlib import suppress

import pytest
import torch
from torch import nn

import slipway
from messages import assert_warning, refused
from ranks import on_ranks
from slipway import Session, Stopped
from slipway.checkpoint.header import Position
from slipway.script.peek import require_peeked_position


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    monkeypatch.setattr("slipway.run.agreement.VOTE_INTERVAL", 0)
    for name in ("RUN_DIR", "TRAINER_ATTEMPT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def train(folder, *, epochs=3, stop_at=None):
    """Train with three batches per epoch; return where the session began."""
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
def test_peek_returns_position_where_session_begins(stop_at, tmp_path):
    assert slipway.peek(tmp_path / "run") is None
    train(tmp_path / "run", stop_at=stop_at)
    before = sorted(tmp_path.rglob("*"))
    found = slipway.peek(tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before
    assert (found.epoch, found.step) == found[:2] == train(tmp_path / "run")


def test_has_begun_reports_whether_epoch_has_started(tmp_path):
    """Needed by a script that adds a parameter group in its second epoch, and must not add it twice."""

    def script(folder, stop_at=None):
        torch.manual_seed(0)
        layers = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)])
        optimizer = torch.optim.SGD(layers[0].parameters(), lr=0.1, momentum=0.9)
        added = {"params": layers[1].parameters(), "lr": 0.01}
        if (found := slipway.peek(folder)) and found.has_begun(1):
            optimizer.add_param_group(added)
        with Session(model=layers, optimizer=optimizer, folder=folder) as session:
            for epoch in session.epochs(3):
                if epoch == 1 and len(optimizer.param_groups) == 1:
                    optimizer.add_param_group(added)
                for _ in session.batches([1, 2, 3]):
                    optimizer.zero_grad()
                    layers[1](layers[0](torch.ones(1, 1))).square().sum().backward()
                    optimizer.step()
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
        return [parameter.item() for parameter in layers.parameters()]

    whole = script(tmp_path / "whole")
    for stop_at in (2, 3, 4, 6, 7):
        with pytest.raises(Stopped):
            script(tmp_path / str(stop_at), stop_at)
        assert script(tmp_path / str(stop_at)) == whole


@pytest.mark.usefixtures("script_file")
def test_peek_uses_session_folder_by_default(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    train(None, stop_at=4)
    assert slipway.peek()[:2] == (1, 4)
    monkeypatch.setenv("RUN_DIR", str(tmp_path / "job"))
    assert slipway.peek() is None
    train(None, stop_at=2)
    assert slipway.peek()[:2] == (0, 2)


def test_peek_skips_damaged_manifest(tmp_path):
    train(tmp_path)
    checkpoints = sorted((tmp_path / "checkpoints").glob("step_*"), reverse=True)
    for path, expected in zip(checkpoints, [(2, 6), (1, 3)], strict=False):
        (path / "manifest.json").write_text("{}")
        assert slipway.peek(tmp_path)[:2] == expected
    (checkpoints[-1] / "manifest.json").unlink()
    with refused("damaged-checkpoint", len(checkpoints)):
        slipway.peek(tmp_path)


def test_peek_finds_checkpoint_if_its_replacement_was_killed(tmp_path):
    train(tmp_path, stop_at=4)
    newest = tmp_path / "checkpoints" / "step_00000004"
    hidden = newest.rename(newest.with_name(".step_00000004.replaced.17"))
    assert slipway.peek(tmp_path)[:2] == (1, 4)
    assert hidden.exists()
    assert train(tmp_path) == (1, 4)


def test_session_resuming_from_other_checkpoint_than_peeked_is_refused(tmp_path, caplog):
    train(tmp_path, stop_at=4)
    newest = max((tmp_path / "checkpoints").glob("step_*"))
    (newest / "model.safetensors").write_bytes(b"damaged")  # peek reads no tensors
    assert slipway.peek(tmp_path)[:2] == (1, 4)
    for _ in range(2):  # even if the script catches the error and opens another session
        with refused("peeked-elsewhere", 4, 3, code=1) as caught:
            train(tmp_path)
        assert caught.value.retryable
    assert_warning(caplog.text, "checkpoint-set-aside", newest)
    assert slipway.peek(tmp_path)[:2] == (1, 3)
    assert train(tmp_path) == (1, 3)


def test_session_that_resumes_after_empty_peek_is_refused(tmp_path):
    run, copy = tmp_path / "run", tmp_path / "copy"
    train(run, stop_at=2)
    assert slipway.peek(copy) is None
    shutil.copytree(run, copy, symlinks=True)
    with refused("peeked-elsewhere", 2):
        train(copy)


def test_peeked_position_is_cleared_once_session_resumes(tmp_path):
    train(tmp_path, stop_at=4)
    assert slipway.peek(tmp_path)[:2] == (1, 4)
    assert train(tmp_path, stop_at=5) == (1, 4)
    assert train(tmp_path) == (1, 5)


def test_position_peeked_by_one_rank_is_required_on_all_ranks(tmp_path):
    assert slipway.peek(tmp_path) is None

    def check(comm):
        folder = tmp_path if comm.world.rank == 1 else tmp_path / "not peeked into"
        with refused("peeked-elsewhere", 3) as caught:
            require_peeked_position(folder, Position(epoch=1, step=3), comm)
        return caught.value.raised_on_all_ranks

    assert on_ranks(3, check) == [True] * 3

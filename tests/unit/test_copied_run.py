"""Run folders copied by a program that follows links: ``latest`` and ``best`` are folders in the copy."""

import os
import shutil
import signal
from contextlib import suppress

import pytest
import torch
from torch import nn

import slipway
from messages import assert_warning
from slipway import Session, Stopped

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


def train(folder, *, stop_at=None):
    """Train with three batches per epoch, the second of which is best; return the first step and the weight."""
    torch.manual_seed(7)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    session = Session(model=model, optimizer=optimizer, folder=folder, keep=9, best="score")
    with suppress(Stopped), session:
        began = session.step
        for epoch in session.epochs(4):
            for _ in session.batches([1, 2, 3]):
                if session.step + 1 == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                optimizer.zero_grad()
                (model(torch.rand(1, 1)) ** 2).sum().backward()
                optimizer.step()
            session.metrics(score=-abs(epoch - 1))
    return began, model.weight.item()


@pytest.fixture
def expected(tmp_path):
    """Return the weight of a run that was not copied."""
    return train(tmp_path / "whole")[1]


@pytest.fixture
def copy(tmp_path):
    """Return the checkpoints of a run stopped at step 7, as ``cp -rL`` copies them."""
    train(tmp_path / "run", stop_at=7)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    return tmp_path / "copy" / "checkpoints"


def links(checkpoints):
    return [str((checkpoints / name).readlink()) for name in ("latest", "best")]


def test_copied_run_resumes_exactly_and_keeps_all_checkpoints(copy, expected, caplog):
    assert (copy / "best").is_dir()
    assert train(copy.parent) == (7, expected)
    assert links(copy) == ["step_00000012", "step_00000006"]
    for name, step in [("latest", 7), ("best", 6)]:
        assert_warning(caplog.text, "checkpoint-set-aside", copy / name, f"{name}.set-aside.1")
        manifests = [copy / folder / "manifest.json" for folder in (f"{name}.set-aside.1", f"step_{step:08d}")]
        assert manifests[0].read_bytes() == manifests[1].read_bytes()
    assert list(copy.glob(".*")) == []


def test_copied_latest_folder_is_renamed_to_missing_step(copy, expected):
    for path in copy.glob("step_*"):
        shutil.rmtree(path)
    assert slipway.peek(copy.parent)[:2] == (2, 7)
    assert (copy / "latest").is_dir()
    assert train(copy.parent) == (7, expected)
    assert (copy / "step_00000006").is_dir()
    assert list(copy.glob("*.set-aside.*")) == []


def test_damaged_copies_of_latest_and_best_are_set_aside(copy, expected):
    for name in ("latest", "best"):
        (copy / name / "manifest.json").write_text("{}")
    assert train(copy.parent) == (7, expected)
    assert links(copy) == ["step_00000012", "step_00000006"]
    assert (copy / "latest.set-aside.1" / "manifest.json").read_text() == "{}"

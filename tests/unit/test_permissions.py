"""Files and folders of a run that this user may not read or write: errors name them and the remedy."""

import pytest
import torch
from torch import nn

import slipway
from messages import assert_error, refused
from slipway import Session
from slipway.__main__ import main
from support import permissions_hold

pytestmark = pytest.mark.usefixtures("agree_after_each_step")


@pytest.fixture(autouse=True)
def modes():
    with permissions_hold():
        yield


def session_of(folder):
    model = nn.Linear(1, 1)
    return Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), folder=folder)


@pytest.fixture
def run(tmp_path):
    """Return a run folder with one checkpoint."""
    with session_of(tmp_path / "run") as session:
        for _ in session.epochs(1):
            for _ in session.batches([1]):
                next(iter(session._objects["optimizer"].values())).step()
    return tmp_path / "run"


@pytest.fixture
def chmod():
    """Return a function that sets the mode of a path, until the end of the test."""
    changed = {}

    def change(path, mode):
        changed[path] = path.stat().st_mode
        path.chmod(mode)
        return path

    yield change
    for path, mode in reversed(changed.items()):
        path.chmod(mode)


@pytest.mark.parametrize("name", ["manifest.json", "model.safetensors"])
def test_unreadable_checkpoint_file_is_refused_with_path(name, run, chmod, capsys):
    path = chmod(run / "checkpoints" / "step_00000001" / name, 0)
    with refused("cannot-read", path, code=78) as caught, session_of(run):
        raise AssertionError
    assert not caught.value.retryable
    assert main(["export", str(run), str(run / "weights.pt")]) == 78
    assert_error(capsys.readouterr().err, "cannot-read", path)


@pytest.mark.parametrize("mode", [0, 0o300])
def test_unlistable_checkpoints_folder_is_refused(mode, run, chmod, capsys):
    path = chmod(run / "checkpoints", mode)
    with refused("cannot-read", path):
        slipway.peek(run)
    with refused("cannot-read", path, code=78), session_of(run):
        raise AssertionError
    assert main(["export", str(run), str(run / "weights.pt")]) == 78
    assert_error(capsys.readouterr().err, "cannot-read", path)


@pytest.mark.parametrize(("folder", "named"), [("logs", "logs/2"), ("checkpoints", "checkpoints/.latest")])
def test_unwritable_run_subfolder_is_refused_with_path(folder, named, run, chmod):
    chmod(run / folder, 0o500)
    with refused("cannot-write", run / named, code=78), session_of(run):
        raise AssertionError

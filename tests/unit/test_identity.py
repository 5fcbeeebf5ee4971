"""Identity of a run: its seed, recorded before any draw; its command; and its folder within a process."""

import json
import os
import signal
import sys
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from messages import assert_warning, refused, slugs
from slipway import Session, Stopped
from slipway.run.status import read_status
from slipway.script import identity

BATCHES = 4


pytestmark = pytest.mark.usefixtures("agree_after_each_step")


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """Return a function that makes the test count as a new process: randomly seeded, without sessions."""

    def begin():
        monkeypatch.setattr(identity, "process", identity.Process())
        torch.seed()

    begin()
    return begin


class Killed(BaseException):
    """Ends an attempt without saving."""


def train(folder, *, epochs=1, kill_at=None, stop_at=None, **options):
    """Return the samples of each batch, with the numbers that its body drew; the first weights are always the same.

    The process is killed before batch ``kill_at``, or stopped before ``stop_at``.
    """
    model = nn.Linear(1, 1)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(torch.arange(8.0)[:, None]), 2, shuffle=True)
    drawn = []
    interruption = pytest.raises((Killed, Stopped)) if kill_at or stop_at else nullcontext()
    with interruption, Session(model=model, optimizer=optimizer, folder=folder, **options) as session:
        for _ in session.epochs(epochs):
            for (inputs,) in session.batches(loader):
                drawn.append((inputs[:, 0].tolist(), torch.rand(1).item()))
                if session.step == kill_at:
                    raise Killed
                if session.step + 1 == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                model(inputs).sum().backward()
                optimizer.step()
    return drawn


def seed_of(folder):
    return json.loads((folder / "run.json").read_text())["session"]["seed"]


def remove_session(path):
    """Rewrite run.json in the form of an earlier version."""
    record = json.loads(path.read_text())
    del record["session"]
    path.write_text(json.dumps(record))


class TestSeed:
    def test_seed_is_recorded_before_first_draw_and_reused_after_kill(self, tmp_path, new_process):
        torch.manual_seed(7)
        whole = train(tmp_path / "whole")
        new_process()
        torch.manual_seed(7)
        train(tmp_path / "run", kill_at=2)
        assert not [*(tmp_path / "run" / "checkpoints").iterdir()]
        for _ in range(2):
            new_process()
            train(tmp_path / "run", kill_at=1)
        new_process()
        assert train(tmp_path / "run") == whole

    def test_seed_is_restored_from_checkpoint_without_run_record(self, tmp_path, new_process):
        train(tmp_path, epochs=2, stop_at=2)
        seed = seed_of(tmp_path)
        new_process()
        (tmp_path / "run.json").unlink()
        train(tmp_path, epochs=2)
        assert seed_of(tmp_path) == seed

    def test_run_draws_follow_seed_of_script(self, tmp_path, new_process):
        drawn = []
        for number, seed in enumerate([1, 2, 3, -1, 2**64 - 1, 2**63, 1]):
            new_process()
            torch.manual_seed(seed)
            drawn.append(train(tmp_path / str(number)))
        assert drawn[0] == drawn[6]
        assert drawn[3] == drawn[4]
        assert len({str(each) for each in drawn}) == 5

    def test_unseeded_script_draws_differently_in_each_run(self, tmp_path, new_process):
        first = train(tmp_path / "1")
        new_process()
        assert train(tmp_path / "2") != first

    @pytest.mark.parametrize("before", [None, 5])
    def test_changed_seed_is_refused_after_checkpoint(self, before, tmp_path):
        torch.manual_seed(5)
        train(tmp_path, stop_at=2, seed=before)
        with refused("different-run", 5, 6):
            train(tmp_path, seed=6)
        assert len(train(tmp_path, seed=5)) == BATCHES - 2

    def test_changed_seed_before_first_checkpoint_starts_new_run(self, tmp_path, new_process):
        whole = train(tmp_path / "whole", seed=6)
        new_process()
        train(tmp_path / "run", seed=5, kill_at=2)
        new_process()
        assert train(tmp_path / "run", seed=6) == whole

    def test_checkpoint_of_earlier_version_keeps_its_seed(self, tmp_path, new_process):
        train(tmp_path, stop_at=2, seed=0)
        remove_session(tmp_path / "run.json")
        new_process()
        rest = train(tmp_path)
        assert seed_of(tmp_path) == 0
        assert rest == train(tmp_path.with_name("whole"), seed=0)[2:]

    @pytest.mark.parametrize("seed", [0.5, "1", [1]])
    def test_non_integer_seed_is_refused(self, seed, tmp_path):
        with refused("session-arguments", repr(seed), code=78):
            Session(extra=torch.Generator(), folder=tmp_path, seed=seed)


class TestSeveralSessions:
    @pytest.mark.parametrize("seed", [None, -1])
    def test_folds_after_kill_resume_with_same_results(self, seed, tmp_path, new_process):
        def seeded():
            new_process()
            if seed is not None:
                torch.manual_seed(seed)

        seeded()
        folds = [train(tmp_path / "whole" / f"fold{fold}", seed=None) for fold in range(3)]
        assert folds[0] != folds[1] != folds[2] != folds[0]
        origin = seed_of(tmp_path / "whole" / "fold0")
        seeded()
        if seed is None:
            torch.manual_seed(origin)
        train(tmp_path / "run" / "fold0")
        train(tmp_path / "run" / "fold1", kill_at=2)
        seeded()
        assert train(tmp_path / "run" / "fold0") == []
        assert train(tmp_path / "run" / "fold1") == folds[1]
        assert train(tmp_path / "run" / "fold2") == folds[2]

    def test_seeding_before_each_session_gives_equal_draws(self, tmp_path):
        folds = []
        for fold in range(2):
            torch.manual_seed(3)
            folds.append(train(tmp_path / str(fold)))
        assert folds[0] == folds[1]

    @pytest.mark.parametrize("run_dir", [None, "/runs/of a job"])
    def test_folder_of_run_completed_in_process_is_refused(self, run_dir, tmp_path, monkeypatch, new_process):
        if run_dir:
            monkeypatch.setenv("RUN_DIR", run_dir)
        train(tmp_path / "run")
        (tmp_path / "link").symlink_to(tmp_path / "run")
        before = read_status(tmp_path / "run")
        for name in ("run", "link", "run/../run"):
            with refused("folder-used-twice", f"{run_dir or 'runs'}/fold{{k}}", code=78):
                train(tmp_path / name)
        assert read_status(tmp_path / "run") == before
        new_process()
        assert len(train(tmp_path / "run", epochs=2)) == BATCHES

    def test_entering_session_twice_is_refused(self, tmp_path):
        session = Session(extra=torch.Generator(), folder=tmp_path)
        with session:
            pass
        with refused("folder-used-twice"), session:
            pass

    def test_run_stopped_in_process_resumes_in_same_process(self, tmp_path, caplog):
        train(tmp_path, stop_at=2)
        assert len(train(tmp_path)) == BATCHES - 2
        assert slugs(caplog.text) == []

    def test_resuming_run_that_failed_in_process_warns(self, tmp_path, caplog):
        train(tmp_path, kill_at=2, checkpoint_steps=1)
        train(tmp_path)
        assert_warning(caplog.text, "folder-used-twice", tmp_path)

    def test_refused_session_does_not_mark_folder_as_used(self, tmp_path, caplog):
        train(tmp_path, stop_at=2, seed=1)
        with refused("different-run"):
            train(tmp_path, seed=2)
        train(tmp_path, seed=1)
        assert "folder-used-twice" not in caplog.text


class TestCommand:
    @pytest.fixture(autouse=True)
    def of_a_script(self, tmp_path, monkeypatch):
        script = tmp_path / "main.py"
        script.write_text("1")
        monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
        monkeypatch.setattr(sys, "argv", [str(script), "--lr", "1"])

    def test_unchanged_command_does_not_warn(self, tmp_path, caplog):
        train(tmp_path / "run", stop_at=2)
        train(tmp_path / "run")
        assert slugs(caplog.text) == []

    @pytest.mark.parametrize("kind", ["stop_at", "kill_at"])
    def test_changed_arguments_warn_once_with_original_arguments(
        self, kind, tmp_path, monkeypatch, caplog, new_process
    ):
        train(tmp_path / "run", **{kind: 2})
        for stop_at in [3, None] if kind == "stop_at" else [3]:
            caplog.clear()
            new_process()
            monkeypatch.setattr(sys, "argv", ["main.py", "--lr", "two words"])
            train(tmp_path / "run", stop_at=stop_at)
            assert slugs(caplog.text) == ["other-command"]
            assert_warning(caplog.text, "other-command", "--lr 1", "--lr 'two words'", tmp_path / "run")

    def test_command_is_replaced_until_first_checkpoint(self, tmp_path, monkeypatch, caplog):
        train(tmp_path / "run", kill_at=2)
        monkeypatch.setattr(sys, "argv", ["main.py"])
        train(tmp_path / "run", stop_at=2)
        caplog.clear()
        train(tmp_path / "run")
        assert slugs(caplog.text) == []

    def test_changed_script_warns_with_both_digests(self, tmp_path, caplog):
        train(tmp_path / "run", stop_at=2)
        (tmp_path / "main.py").write_text("2")
        train(tmp_path / "run")
        assert_warning(caplog.text, "other-command", tmp_path / "main.py", "6b86b273ff34", "d4735e3a265e")

    def test_process_without_script_does_not_warn(self, tmp_path, monkeypatch, caplog):
        monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
        train(tmp_path / "run", stop_at=2)
        train(tmp_path / "run")
        assert slugs(caplog.text) == []

    def test_completed_run_logs_its_original_arguments(self, tmp_path, monkeypatch, caplog, new_process):
        caplog.set_level("INFO")
        train(tmp_path / "run")
        assert not [record for record in caplog.records if record.name == "slipway.script.identity"]
        new_process()
        monkeypatch.setattr(sys, "argv", ["main.py", "--lr", "7"])
        train(tmp_path / "run")
        said = [record.args for record in caplog.records if record.name == "slipway.script.identity"]
        assert [args[:2] for args in said[1:]] == [(tmp_path / "run", BATCHES)]
        assert said[1][2] == "`--lr 1`"


class TestCheckList:
    def lists(self, caplog):
        messages = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
        return [message for message in messages if "EMA" in message]

    def test_first_attempt_logs_check_list_once(self, tmp_path, caplog):
        caplog.set_level("INFO")
        train(tmp_path, stop_at=2)
        (message,) = self.lists(caplog)
        assert "scaler=" in message
        train(tmp_path)
        assert len(self.lists(caplog)) == 1

    def test_check_list_omits_given_scaler(self, tmp_path, caplog):
        caplog.set_level("INFO")
        train(tmp_path, scaler=torch.amp.GradScaler("cpu"))
        (message,) = self.lists(caplog)
        assert "scaler=" not in message

"""The run folder: what is recorded, what a request to stop becomes, and whom it belongs to."""

import json
import os
import pickle
import stat
import zipfile

import pytest
import torch

from trainer.backends.single import SingleBackend
from trainer.cli import load
from trainer.config import Config, DataConfig, ModelConfig, RunConfig, TrainConfig
from trainer.errors import ConfigError, TrainerError
from trainer.run import run
from trainer.runfolder import RunFolder, Status
from trainer.stop import Reason, StopRequest
from trainer.world import World

RESUME = Config(run=RunConfig(resume="auto"))


def opened(path, config=RESUME, **env):
    folder = RunFolder(path, env)
    folder.open(config, World())
    return folder


def ended(path, **status):
    """Leave ``path`` as an attempt that came to ``status`` does."""
    folder = opened(path)
    folder.write_status(Status(attempt=folder.attempt, **status))
    folder.close()


def status_of(path):
    return json.loads((path / "status.json").read_text())


class TestOpening:
    def test_it_is_made_with_its_parents_for_its_owner_alone(self, tmp_path):
        path = tmp_path / "runs" / "mine"
        opened(path)
        assert {entry.name for entry in path.iterdir()} == {
            *("checkpoints", "config.toml", "figures", "lock", "logs", "run.json")
        }
        for folder in (path, *(entry for entry in path.iterdir() if entry.is_dir())):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder

    def test_the_configuration_in_it_is_the_one_that_runs(self, tmp_path):
        config = Config(train=TrainConfig(epochs=3), run=RunConfig(output_dir=str(tmp_path)))
        opened(tmp_path, config)
        assert load(tmp_path / "config.toml") == config

    def test_run_json_records_no_variable_but_the_listed_ones(self, tmp_path, monkeypatch):
        monkeypatch.setenv("WANDB_API_KEY", "a-secret-token")
        monkeypatch.setenv("TRAINER_JOB_ID", "42")
        opened(tmp_path)
        text = (tmp_path / "run.json").read_text()
        record = json.loads(text)
        assert "a-secret-token" not in text
        assert record["variables"]["TRAINER_JOB_ID"] == "42"
        assert (record["torch"], record["world_size"]) == (torch.__version__, 1)

    def test_a_second_run_is_refused_while_the_first_lives(self, tmp_path):
        opened(tmp_path)
        with pytest.raises(ConfigError, match=f"in use by process {os.getpid()}"):
            opened(tmp_path)

    def test_a_path_that_cannot_be_a_folder_is_refused(self, tmp_path):
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(ConfigError, match=f"cannot write to --output-dir {path}: "):
                opened(path)

    @pytest.mark.parametrize("with_status", [True, False])
    def test_a_run_that_is_there_is_only_continued_when_asked(self, tmp_path, with_status):
        ended(tmp_path, state="done")
        (tmp_path / "checkpoints" / "step_00000001").mkdir()
        if not with_status:  # a job script has moved it aside
            (tmp_path / "status.json").unlink()
        with pytest.raises(ConfigError, match="holds a run already: --resume auto continues it"):
            opened(tmp_path, Config())
        opened(tmp_path, RESUME)

    def test_one_that_saved_nothing_may_be_started_again(self, tmp_path):
        ended(tmp_path, state="failed")
        opened(tmp_path, Config())

    @pytest.mark.parametrize("text", ["", "null", "{}", '{"attempt": 1, "state": "done", "strange": 1}'])
    def test_a_status_that_makes_no_sense_counts_as_none(self, tmp_path, text):
        (tmp_path / "status.json").write_text(text)
        assert opened(tmp_path).attempt == 1


class TestStatus:
    def test_it_is_one_line_with_just_the_fields_of_the_contract(self, tmp_path):
        ended(tmp_path, state="stopped", reason="time-limit", start_step=3, step=9, requeue=True)
        assert (tmp_path / "status.json").read_text().count("\n") == 1
        assert status_of(tmp_path) == {
            "attempt": 1,
            "state": "stopped",
            "reason": "time-limit",
            "start_step": 3,
            "step": 9,
            "requeue": True,
        }

    def test_attempts_are_counted_unless_the_job_script_counts(self, tmp_path):
        for number, env in enumerate([{}, {}, {"TRAINER_ATTEMPT": ""}, {"TRAINER_ATTEMPT": "7"}], start=1):
            expected = 7 if env.get("TRAINER_ATTEMPT") else number
            folder = opened(tmp_path, **env)
            assert folder.attempt == expected
            folder.write_status(Status(attempt=folder.attempt, state="stopped"))
            folder.close()

    def test_an_attempt_that_is_no_number_is_refused(self, tmp_path):
        with pytest.raises(ConfigError, match="TRAINER_ATTEMPT='first' must be a whole number"):
            opened(tmp_path, TRAINER_ATTEMPT="first")

    def test_a_failure_keeps_what_was_reached_and_frees_the_folder(self, tmp_path):
        folder = opened(tmp_path)
        folder.write_status(Status(attempt=1, state="running", start_step=5, step=8))
        folder.fail("the loss is nan")
        assert status_of(tmp_path) == {
            "attempt": 1,
            "state": "failed",
            "reason": "the loss is nan",
            "start_step": 5,
            "step": 8,
            "requeue": False,
        }
        assert not (tmp_path / "lock").exists()

    def test_an_attempt_that_fails_is_not_requeued_because_the_one_before_was(self, tmp_path):
        ended(tmp_path, state="stopped", reason="time-limit", step=9, requeue=True)
        opened(tmp_path).fail("cannot resume")
        assert (status_of(tmp_path)["attempt"], status_of(tmp_path)["requeue"]) == (2, False)

    def test_a_run_that_lost_its_folder_leaves_the_new_owners_status_alone(self, tmp_path):
        first = opened(tmp_path, TRAINER_JOB_ID="1", TRAINER_ATTEMPT="1")
        second = opened(tmp_path, TRAINER_JOB_ID="1", TRAINER_ATTEMPT="2")
        second.write_status(Status(attempt=2, state="running"))
        with pytest.raises(TrainerError, match="is no longer this run's"):
            first.check()
        first.fail("another run has taken over")
        assert (status_of(tmp_path)["attempt"], status_of(tmp_path)["state"]) == (2, "running")
        second.check()


class TestStopFile:
    @pytest.mark.parametrize("word", ["user", "time-limit"])
    def test_it_is_looked_at_at_most_once_a_second(self, tmp_path, word):
        folder = opened(tmp_path)
        assert folder.stop_request() == Reason.NONE
        (tmp_path / "STOP").write_text(word)
        assert folder.stop_request() == Reason.NONE
        folder._next_look = 0.0
        assert folder.stop_request().word == word

    def test_one_for_the_time_limit_is_removed_on_the_next_start(self, tmp_path):
        ended(tmp_path, state="stopped", reason="time-limit")
        (tmp_path / "STOP").write_text("time-limit\n")
        opened(tmp_path).clear_stop_request()
        assert not (tmp_path / "STOP").exists()

    def test_one_that_means_this_very_attempt_stays(self, tmp_path):
        ended(tmp_path, state="stopped", reason="time-limit")
        for meant, reason in (("4711/1", Reason.NONE), ("4712/2", Reason.NONE), ("4711/2", Reason.TIME_LIMIT)):
            (tmp_path / "STOP").write_text(f"time-limit {meant}\n")
            folder = opened(tmp_path, TRAINER_JOB_ID="4711", TRAINER_ATTEMPT="2")
            folder.clear_stop_request()
            assert folder.stop_request() == reason
            folder.close()

    def test_the_users_is_removed_once_an_attempt_has_ended_on_it(self, tmp_path):
        ended(tmp_path, state="stopped", reason="user")
        (tmp_path / "STOP").write_text("user\n")
        opened(tmp_path).clear_stop_request()
        assert not (tmp_path / "STOP").exists()

    def test_also_where_a_job_script_has_moved_its_status_aside(self, tmp_path):
        ended(tmp_path, state="stopped", reason="user")
        (tmp_path / "STOP").write_text("user\n")
        (tmp_path / "status.json").rename(tmp_path / "status.previous.json")
        opened(tmp_path).clear_stop_request()
        assert not (tmp_path / "STOP").exists()

    @pytest.mark.parametrize("before", [{"state": "stopped", "reason": "time-limit"}, {"state": "failed"}, None])
    def test_the_users_stays_until_then(self, tmp_path, before):
        if before:
            ended(tmp_path, **before)
        (tmp_path / "STOP").write_text("user\n")
        folder = opened(tmp_path)
        folder.clear_stop_request()
        assert folder.stop_request() == Reason.USER


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Train three steps in this process, with everything that writes switched on."""
    path = tmp_path_factory.mktemp("run") / "mine"
    config = Config(
        data=DataConfig(crop_padding=1),
        model=ModelConfig(arch="mlp", ema_decay=0.9),
        train=TrainConfig(max_steps=3, epochs=1),
        run=RunConfig(
            device="cpu",
            threads=1,
            output_dir=str(path),
            log_interval=1,
            checkpoint_interval=2,
            tensorboard=True,
            record_samples=True,
        ),
    )
    status = run(config, SingleBackend(config), StopRequest())
    assert (status.state, status.step) == ("done", 3)
    return path


class TestWholeRun:
    @staticmethod
    def is_pickle(path):
        """Tell whether ``path`` is pickled, by itself or as torch.save does it, inside a ZIP."""
        data = path.read_bytes()
        return zipfile.is_zipfile(path) or data.startswith(b"\x80") or b"\x80\x02}" in data

    def test_the_tree_is_that_of_the_contract(self, finished):
        assert {entry.name for entry in finished.iterdir()} == {
            *("checkpoints", "config.toml", "figures", "logs", "metrics.jsonl", "run.json", "status.json"),
            "tensorboard",
        }
        assert {entry.name for entry in (finished / "checkpoints").iterdir()} == {
            *("latest", "best", "step_00000002", "step_00000003")
        }
        assert {entry.name for entry in (finished / "checkpoints" / "latest").iterdir()} == {
            *("manifest.json", "model.safetensors", "optimizer.safetensors", "ema.safetensors")
        }

    def test_nothing_in_it_is_pickled(self, finished, tmp_path):
        (tmp_path / "plain").write_bytes(pickle.dumps({"a": 1}, protocol=2))
        torch.save({"a": torch.zeros(1)}, tmp_path / "torch")
        assert self.is_pickle(tmp_path / "plain")
        assert self.is_pickle(tmp_path / "torch")
        files = [file for file in finished.rglob("*") if file.is_file()]
        assert len(files) > 10
        assert [file for file in files if self.is_pickle(file)] == []

    def test_its_metrics_tell_of_each_step_and_of_the_test(self, finished):
        records = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
        assert [(record["kind"], record["step"]) for record in records] == [
            ("train", 1),
            ("train", 2),
            ("train", 3),
            ("test", 3),
        ]

    def test_the_samples_of_each_step_are_recorded(self, finished):
        records = [json.loads(line) for line in (finished / "logs" / "samples.rank0.jsonl").read_text().splitlines()]
        assert [(record["step"], len(record["ids"])) for record in records] == [(0, 64), (1, 64), (2, 64)]

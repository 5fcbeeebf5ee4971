"""The run folder: what is recorded, what a request to stop becomes, and whom it belongs to."""

import errno
import json
import os
import pickle
import stat
import zipfile

import pytest
import torch

from slipway.communicator import Alone
from slipway.errors import (
    AttemptNumberError,
    FolderHoldsRunError,
    FolderInUseError,
    FolderNotWritableError,
    LostFolderError,
    SlipwayError,
)
from slipway.layout import VERDICTS
from slipway.stop import Reason, StopRequest
from slipway.world import World
from trainer.cli import load
from trainer.config import (
    Config,
    DataConfig,
    Launch,
    ModelConfig,
    OptimConfig,
    RunConfig,
    Settings,
    TrainConfig,
    experiment,
)
from trainer.errors import ConfigError, TrainerError
from trainer.run import run
from trainer.runfolder import RunFolder, Status, refuse
from trainer.strategies.single import SingleStrategy

RESUME = Launch(resume="auto")
DEFAULTS = Config()


def opened(path, launch=RESUME, **env):
    folder = RunFolder(path, env)
    folder.open(launch)
    return folder


def recorded(path, config=DEFAULTS, **env):
    folder = opened(path, **env)
    folder.record(config, World(), {"backend": "single"})
    return folder


def ended(path, **status):
    """Leave ``path`` as an attempt that came to ``status`` does."""
    folder = recorded(path)
    folder.conclude(Status(attempt=folder.attempt, **status))


def status_of(path):
    return json.loads((path / "status.json").read_text())


def verdict_of(path, attempt=1):
    return (path / f"verdict.{attempt}").read_text()


def snapshot(path):
    """Return the bytes of every file below ``path``, by its name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def umask():
    """Set the umask for one test."""
    before = os.umask(0o077)
    yield os.umask
    os.umask(before)


class TestOpening:
    def test_it_is_made_with_its_parents_for_its_owner_alone(self, tmp_path):
        path = tmp_path / "runs" / "mine"
        recorded(path)
        assert {entry.name for entry in path.iterdir()} == {
            *("checkpoints", "config.toml", "figures", "lock", "logs", "run.json")
        }
        assert stat.S_IMODE(path.stat().st_mode) == 0o700

    def test_one_that_is_there_keeps_its_mode_and_what_is_made_in_it_follows_the_umask(self, tmp_path, umask):
        path = tmp_path / "mine"
        path.mkdir()
        path.chmod(0o750)
        umask(0o027)
        recorded(path)
        folders = [path, *(entry for entry in path.iterdir() if entry.is_dir())]
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o750}
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in path.iterdir() if entry.is_file()} == {0o640}

    def test_the_configuration_in_it_is_the_one_that_runs(self, tmp_path):
        config = Config(train=TrainConfig(epochs=3, max_steps=None), optim=OptimConfig(clip_grad=1.0))
        recorded(tmp_path, config)
        loaded = load(tmp_path / "config.toml")
        assert experiment(loaded) == experiment(config)
        assert loaded.launch == Launch()

    def test_run_json_records_no_variable_but_the_listed_ones(self, tmp_path, monkeypatch):
        monkeypatch.setenv("WANDB_API_KEY", "a-secret-token")
        monkeypatch.setenv("TRAINER_JOB_ID", "42")
        recorded(tmp_path)
        text = (tmp_path / "run.json").read_text()
        record = json.loads(text)
        assert "a-secret-token" not in text
        assert record["variables"]["TRAINER_JOB_ID"] == "42"
        assert (record["torch"], record["world_size"]) == (torch.__version__, 1)

    def test_a_second_run_is_refused_while_the_first_lives(self, tmp_path):
        opened(tmp_path)
        with pytest.raises(FolderInUseError, match=f"in use by process {os.getpid()}"):
            opened(tmp_path)

    def test_a_path_that_cannot_be_a_folder_is_refused(self, tmp_path):
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(FolderNotWritableError, match=f"cannot write to the run folder {path}: "):
                opened(path)

    @pytest.mark.parametrize("with_status", [True, False])
    def test_a_run_that_is_there_is_only_continued_when_asked(self, tmp_path, with_status):
        ended(tmp_path, state="done")
        (tmp_path / "checkpoints" / "step_00000001").mkdir()
        if not with_status:
            (tmp_path / "status.json").unlink()
        with pytest.raises(FolderHoldsRunError, match="holds a run already"):
            opened(tmp_path, Launch())
        opened(tmp_path, RESUME)

    def test_the_self_test_is_refused_where_it_would_replace_the_records_of_a_run(self, tmp_path):
        ended(tmp_path, state="done")
        (tmp_path / "checkpoints" / "step_00000001").mkdir()
        with pytest.raises(ConfigError, match=r"holds a run already\. --self-test needs another --output-dir"):
            opened(tmp_path, Launch(resume="auto", self_test=True))

    def test_one_that_saved_nothing_may_be_started_again(self, tmp_path):
        ended(tmp_path, state="failed")
        opened(tmp_path, Launch())

    @pytest.mark.parametrize("text", ["", "null", "{}", '{"attempt": 1}'])
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

    @pytest.mark.parametrize("left", ["logs/6", "verdict.6"])
    def test_an_attempt_that_left_no_status_counts_too(self, tmp_path, left):
        ended(tmp_path, state="done")
        for name in (left, "logs/samples.rank9.jsonl", "verdict.x", ".verdict.9.123"):
            (tmp_path / name).mkdir()
        assert opened(tmp_path).attempt == 7

    def test_attempts_are_counted_unless_the_job_script_counts(self, tmp_path):
        for number, env in enumerate([{}, {}, {"TRAINER_ATTEMPT": ""}, {"TRAINER_ATTEMPT": "7"}], start=1):
            expected = 7 if env.get("TRAINER_ATTEMPT") else number
            folder = opened(tmp_path, **env)
            assert folder.attempt == expected
            folder.write_status(Status(attempt=folder.attempt, state="stopped"))
            folder.close()

    def test_an_attempt_that_is_no_number_is_refused(self, tmp_path):
        with pytest.raises(AttemptNumberError, match="TRAINER_ATTEMPT='first' must be a whole number"):
            opened(tmp_path, TRAINER_ATTEMPT="first")

    def test_a_failure_keeps_what_was_reached_and_frees_the_folder(self, tmp_path):
        folder = recorded(tmp_path)
        folder.write_status(Status(attempt=1, state="running", start_step=5, step=8))
        folder.fail(TrainerError("the loss is nan"))
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
        recorded(tmp_path).fail(TrainerError("the loss is nan"))
        assert (status_of(tmp_path)["attempt"], status_of(tmp_path)["requeue"]) == (2, False)

    def test_a_run_that_lost_its_folder_leaves_the_new_owners_status_alone(self, tmp_path):
        first = opened(tmp_path, TRAINER_JOB_ID="1", TRAINER_ATTEMPT="1")
        second = opened(tmp_path, TRAINER_JOB_ID="1", TRAINER_ATTEMPT="2")
        second.write_status(Status(attempt=2, state="running"))
        with pytest.raises(LostFolderError, match="is no longer this run's"):
            first.check()
        first.fail(TrainerError("another run has taken over"))
        assert (status_of(tmp_path)["attempt"], status_of(tmp_path)["state"]) == (2, "running")
        assert not (tmp_path / "verdict.1").exists()
        second.check()


class TestVerdict:
    """The line by which the job script decides."""

    @pytest.mark.parametrize(
        ("status", "line"),
        [
            ({"state": "done", "step": 9}, "done 9 complete\n"),
            ({"state": "stopped", "reason": "time-limit", "step": 9, "requeue": True}, "out-of-time 9 time-limit\n"),
            ({"state": "stopped", "reason": "time-limit", "step": 9}, "stopped 9 time-limit\n"),
            ({"state": "stopped", "reason": "user", "step": 9}, "stopped 9 user\n"),
            ({"state": "stopped", "reason": "signal", "step": 0}, "stopped 0 signal\n"),
        ],
    )
    def test_an_attempt_that_ends_in_good_order_leaves_its_own(self, tmp_path, status, line):
        ended(tmp_path, **status)
        assert verdict_of(tmp_path) == line
        assert line.split()[0] in VERDICTS
        assert not (tmp_path / "lock").exists()

    @pytest.mark.parametrize(
        "error",
        [
            ConfigError("no such model"),
            TrainerError("the loss is nan"),
            OSError(errno.ENOSPC, "No space left on device"),
            RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        ],
    )
    def test_an_error_that_would_come_again_is_final(self, tmp_path, error):
        recorded(tmp_path).fail(error)
        assert verdict_of(tmp_path) == f"failed 0 {error}\n"

    @pytest.mark.parametrize(
        "error",
        [
            RuntimeError("Connection closed by peer"),
            RuntimeError("CUDA error: an illegal memory access was encountered"),
            OSError(errno.EIO, "Input/output error"),
            RuntimeError("Error while serializing: I/O error: Input/output error (os error 5)"),
            LostFolderError(lock="run/lock"),
            KeyboardInterrupt(),
            KeyError("a bug"),
        ],
        ids=repr,
    )
    def test_any_other_leaves_none(self, tmp_path, error):
        recorded(tmp_path).fail(error)
        assert list(tmp_path.glob("verdict.*")) == []
        assert status_of(tmp_path)["state"] == "failed"

    def test_its_reason_is_one_line_of_what_can_be_printed(self, tmp_path):
        recorded(tmp_path).fail(ConfigError("no data in a\nb\x1b[31m\u2028c\udcff: look there"))
        assert verdict_of(tmp_path) == "failed 0 no data in a b [31m c : look there\n"

    def test_it_names_the_step_of_the_last_checkpoint(self, tmp_path):
        folder = recorded(tmp_path)
        (tmp_path / "checkpoints" / "latest").symlink_to("step_00000023")
        folder.fail(TrainerError("the loss is nan"))
        assert verdict_of(tmp_path) == "failed 23 the loss is nan\n"

    def test_where_it_cannot_be_written_the_attempt_has_failed(self, tmp_path):
        folder = recorded(tmp_path)
        (tmp_path / "verdict.1").mkdir()  # in its place; as root no mode would do
        with pytest.raises(OSError, match="Is a directory"):
            folder.conclude(Status(attempt=1, state="done", step=9))
        folder.fail(TrainerError("cannot write"))
        assert status_of(tmp_path)["state"] == "failed"
        assert not (tmp_path / "lock").exists()


class TestRefusal:
    """An attempt that is refused says so to the job script, and changes nothing else."""

    def refused(self, path, error="cannot resume", **env):
        """Let an attempt fail after it has opened the folder and before it is recorded; return what it changed."""
        before = snapshot(path)
        opened(path, **env).fail(ConfigError(error))
        after = snapshot(path)
        assert before.keys() <= after.keys()
        return {name: text for name, text in after.items() if before.get(name) != text}

    def test_by_its_resume_check(self, tmp_path):
        ended(tmp_path, state="stopped", reason="time-limit", step=9, requeue=True)
        (tmp_path / "checkpoints" / "step_00000009").mkdir()
        assert self.refused(tmp_path, TRAINER_ATTEMPT="5") == {"verdict.5": b"failed 0 cannot resume\n"}

    def test_without_a_number_of_the_job_script_it_leaves_nothing(self, tmp_path):
        ended(tmp_path, state="done", step=9)
        (tmp_path / "checkpoints" / "step_00000009").mkdir()
        assert self.refused(tmp_path) == {}

    def test_in_a_folder_without_a_run_its_status_says_why(self, tmp_path):
        changed = self.refused(tmp_path, "no such model")
        assert changed.keys() == {"status.json"}
        assert (status_of(tmp_path)["state"], status_of(tmp_path)["reason"]) == ("failed", "no such model")

    def test_by_the_lock_of_a_living_run(self, tmp_path):
        recorded(tmp_path).write_status(Status(attempt=1, state="running", step=7))
        before = snapshot(tmp_path)
        second = RunFolder(tmp_path, {"TRAINER_ATTEMPT": "2"})
        with pytest.raises(FolderInUseError, match="in use by") as error:
            second.open(RESUME)
        second.fail(error.value)
        after = snapshot(tmp_path)
        assert after.pop("verdict.2").startswith(b"failed 0 ")
        assert after == before

    @pytest.mark.parametrize(("rank", "leaves"), [("", True), ("0", True), ("1", False)])
    def test_before_the_ranks_have_joined(self, tmp_path, rank, leaves):
        launch = Launch(output_dir=str(tmp_path))
        refuse(launch, ConfigError("no GPU"), {"TRAINER_ATTEMPT": "3", **({"RANK": rank} if rank else {})})
        assert snapshot(tmp_path) == ({"verdict.3": b"failed 0 no GPU\n"} if leaves else {})

    def test_before_it_has_a_folder_nothing_happens(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        refuse(Launch(), ConfigError("no GPU"), {"TRAINER_ATTEMPT": "3"})
        refuse(Launch(output_dir="gone"), ConfigError("no GPU"), {"TRAINER_ATTEMPT": "3"})
        refuse(Launch(output_dir="."), ConfigError("no GPU"), {"TRAINER_ATTEMPT": "first"})
        assert list(tmp_path.iterdir()) == []


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

    def test_one_written_after_the_run_was_done_does_not_stop_its_continuation(self, tmp_path):
        ended(tmp_path, state="done")
        (tmp_path / "STOP").write_text("user\n")
        folder = opened(tmp_path)
        folder.clear_stop_request()
        assert folder.stop_request() == Reason.NONE
        assert not (tmp_path / "STOP").exists()

    @pytest.mark.parametrize("before", [{"state": "done"}, {"state": "stopped", "reason": "user"}])
    def test_one_written_while_the_next_attempt_starts_stops_that(self, tmp_path, before):
        ended(tmp_path, **before)
        (tmp_path / "STOP").write_text("user\n")
        folder = opened(tmp_path)
        (tmp_path / "STOP").unlink()
        (tmp_path / "STOP").write_text("user\n")
        folder.clear_stop_request()
        assert folder.stop_request() == Reason.USER

    @pytest.mark.parametrize(
        ("meant", "reason"),
        [
            ("4711/1", Reason.NONE),
            ("4712/1", Reason.NONE),
            ("4711/2", Reason.TIME_LIMIT),
            ("4712/2", Reason.TIME_LIMIT),
            ("", Reason.TIME_LIMIT),
            ("at noon", Reason.TIME_LIMIT),
        ],
    )
    def test_the_time_limit_of_an_older_attempt_is_ignored(self, tmp_path, meant, reason):
        folder = recorded(tmp_path, TRAINER_JOB_ID="4711", TRAINER_ATTEMPT="2")
        (tmp_path / "STOP").write_text(f"time-limit {meant}\n")
        assert folder.stop_request() == reason

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
    settings = Settings(
        data=DataConfig(crop_padding=1),
        model=ModelConfig(arch="mlp", ema_decay=0.9),
        train=TrainConfig(max_steps=3, epochs=1),
        run=RunConfig(log_interval=1, checkpoint_interval=2, tensorboard=True, record_samples=True),
        launch=Launch(device="cpu", threads=1, output_dir=str(path)),
    )
    status = run(settings, Alone(torch.device("cpu")), SingleStrategy(settings), StopRequest())
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
            *("tensorboard", "verdict.1"),
        }
        assert verdict_of(finished) == "done 3 complete\n"
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

    @pytest.mark.parametrize("attempt", ["", "2"])
    def test_a_resume_that_is_refused_leaves_it_as_it_was(self, finished, monkeypatch, attempt):
        before = snapshot(finished)
        monkeypatch.setenv("TRAINER_ATTEMPT", attempt)
        settings = Settings(
            model=ModelConfig(arch="mnist-cnn"),
            launch=Launch(device="cpu", threads=1, output_dir=str(finished), resume="auto"),
        )
        with pytest.raises(SlipwayError, match=r"model\.arch was 'mlp' and is 'mnist-cnn'"):
            run(settings, Alone(torch.device("cpu")), SingleStrategy(settings), StopRequest())
        after = snapshot(finished)
        verdict = after.pop("verdict.2", b"")
        assert verdict.startswith(b"failed 3 cannot resume: ") == bool(attempt)
        assert after == before

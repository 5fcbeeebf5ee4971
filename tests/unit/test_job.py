"""Runs in folders other than RUN_DIR: what the job script reads about their end, and the STOP that they obey."""

import json
import os

import pytest
import torch

from slipway import Session, Stopped
from slipway.base.environment import read_environment
from slipway.base.errors import SlipwayError
from slipway.base.stop import Reason
from slipway.dist.communicator import Alone
from slipway.run.attempt import acquire, open_folder
from slipway.run.cause import remove_cause
from slipway.run.run_folder import RunFolder

ALONE = Alone(torch.device("cpu"))
DIVERGED = SlipwayError("diverged", "loss nan")


@pytest.fixture
def job(tmp_path):
    """Return RUN_DIR of a job."""
    (tmp_path / "job" / "logs" / "3").mkdir(parents=True)
    return tmp_path / "job"


def acquired(job, name, *, attempt=3):
    """Own the folder ``name`` below RUN_DIR in an attempt of the job; "" is RUN_DIR."""
    env = {"RUN_DIR": str(job), "TRAINER_ATTEMPT": str(attempt), "TRAINER_JOB_ID": "4711"}
    (job / "logs" / str(attempt)).mkdir(exist_ok=True)
    return acquire(RunFolder(job / name if name else job), read_environment(env))


def begun(job, name, *, attempt=3, step=0):
    return acquired(job, name, attempt=attempt).begin(provenance={}, step=step)


def failed(job, name):
    owned = acquired(job, name)
    owned.begin(provenance={}, step=0)
    owned.fail(DIVERGED)


def text_of(path):
    return path.read_text() if path.exists() else None


def verdict(job):
    return text_of(job / "verdict.3")


class TestVerdict:
    @pytest.mark.parametrize(
        ("runs", "verdicts"),
        [
            # a stop is also left for the job script
            (
                [("fold1", Reason.TIME_LIMIT, {"step": 9})],
                {"verdict.3": "out-of-time 9 time-limit\n", "fold1/verdict.3": "out-of-time 9 time-limit\n"},
            ),
            (
                [("fold1", Reason.USER, {"step": 9})],
                {"verdict.3": "stopped 9 user\n", "fold1/verdict.3": "stopped 9 user\n"},
            ),
            (
                [("fold1", Reason.SIGNAL, {"step": 9})],
                {"verdict.3": "stopped 9 signal\n", "fold1/verdict.3": "stopped 9 signal\n"},
            ),
            ([("fold1", Reason.NONE, {"step": 9})], {"verdict.3": None, "fold1/verdict.3": "done 9 complete\n"}),
            # the job script decides whether a step was gained
            (
                [("fold0", Reason.NONE, {"step": 9}), ("fold1", Reason.TIME_LIMIT, {"step": 0})],
                {"verdict.3": "out-of-time 0 time-limit\n", "fold1/verdict.3": "stopped 0 time-limit\n"},
            ),
            (
                [("fold0", Reason.NONE, {"step": 9}), ("", Reason.TIME_LIMIT, {"step": 0})],
                {"verdict.3": "out-of-time 0 time-limit\n"},
            ),
            # a later run that is done does not hide it
            (
                [("fold1", Reason.TIME_LIMIT, {"step": 9}), ("fold2", Reason.NONE, {"step": 5})],
                {"verdict.3": "out-of-time 9 time-limit\n"},
            ),
            (
                [("fold1", Reason.TIME_LIMIT, {"step": 9}), ("", Reason.NONE, {"step": 5})],
                {"verdict.3": "out-of-time 9 time-limit\n"},
            ),
            # unless it is the same run
            (
                [("fold1", Reason.TIME_LIMIT, {"step": 9}), ("fold1", Reason.NONE, {"begun": 9, "step": 12})],
                {"verdict.3": None},
            ),
            (
                [("", Reason.TIME_LIMIT, {"step": 9}), ("", Reason.NONE, {"begun": 9, "step": 12})],
                {"verdict.3": "done 12 complete\n"},
            ),
            # the next attempt has its own
            (
                [
                    ("fold1", Reason.TIME_LIMIT, {"step": 9}),
                    ("fold1", Reason.NONE, {"attempt": 4, "begun": 9, "step": 12}),
                ],
                {"verdict.3": "out-of-time 9 time-limit\n", "verdict.4": None},
            ),
        ],
    )
    def test_consecutive_runs_determine_verdict_of_job(self, job, runs, verdicts):
        for name, reason, steps in runs:
            begun(job, name, attempt=steps.get("attempt", 3), step=steps.get("begun", 0)).conclude(
                reason, step=steps["step"]
            )
        assert {name: text_of(job / name) for name in verdicts} == verdicts

    # regression: a job whose second fit was killed counted as done
    def test_new_run_removes_done_verdict_of_previous_run(self, job):
        begun(job, "").conclude(Reason.NONE, step=9)
        begun(job, "fit2")
        assert verdict(job) is None

    def test_failure_replaces_stop_and_is_removed_by_next_run(self, job):
        begun(job, "fold0").conclude(Reason.TIME_LIMIT, step=9)
        failed(job, "fold1")
        assert verdict(job).startswith("failed 0 diverged: ")
        begun(job, "fold2").conclude(Reason.NONE, step=9)
        assert verdict(job) is None

    def test_refusal_before_folder_exists_writes_job_verdict(self, job):
        (job / "fold1").write_text("not a folder")
        env = {"RUN_DIR": str(job), "TRAINER_ATTEMPT": "3"}
        folder = RunFolder(job / "fold1")
        with pytest.raises(SlipwayError), open_folder(folder, read_environment(env), ALONE, may_continue=True):
            pass
        assert verdict(job).startswith("failed 0 cannot-write: ")

    def test_no_job_verdict_is_written_outside_job(self, job):
        owned = acquire(RunFolder(job / "fold1"), read_environment({"RUN_DIR": str(job)}))
        owned.begin(provenance={}, step=0).conclude(Reason.USER, step=9)
        assert sorted(path.name for path in job.iterdir()) == ["fold1", "logs"]


def test_each_run_is_listed_once_relative_to_run_dir(job):
    for name in ("fold0", "seed 1/fold1", "fold0", "../elsewhere", ""):
        begun(job, name).conclude(Reason.NONE, step=1)
    assert (job / "sessions").read_text() == f"fold0\nseed 1/fold1\n{job.parent}/elsewhere\n"


class TestStop:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("user", Reason.USER),
            ("time-limit 4711/3", Reason.TIME_LIMIT),
            ("time-limit 4711/2", Reason.NONE),
            ("time-limit 4710/3", Reason.NONE),
        ],
    )
    def test_stop_file_of_job_applies_only_to_this_attempt(self, job, text, reason):
        (job / "STOP").write_text(f"{text}\n")
        assert begun(job, "fold1").stop_request() == reason
        assert (job / "STOP").exists() == bool(reason)

    def test_user_stop_applies_to_all_runs_of_one_attempt(self, job):
        (job / "STOP").write_text("user\n")
        begun(job, "fold0").conclude(Reason.NONE, step=9)
        begun(job, "fold1").conclude(Reason.USER, step=9)
        assert begun(job, "fold2").stop_request() == Reason.USER
        assert begun(job, "fold1", attempt=4).stop_request() == Reason.NONE
        assert not (job / "STOP").exists()

    def test_user_stop_between_attempts_stops_first_unfinished_run(self, job):
        begun(job, "fold0").conclude(Reason.NONE, step=9)
        begun(job, "fold1").conclude(Reason.TIME_LIMIT, step=9)
        (job / "STOP").write_text("user\n")
        os.utime(job / "STOP", ns=(0, 1 + (job / "verdict.3").stat().st_mtime_ns))
        begun(job, "fold0", attempt=4).conclude(Reason.NONE, step=9)
        assert begun(job, "fold1", attempt=4).stop_request() == Reason.USER


class TestSessions:
    @pytest.fixture(autouse=True)
    def in_job(self, job, monkeypatch):
        monkeypatch.setattr("slipway.run.agreement.VOTE_INTERVAL", 0)
        for name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name, raising=False)
        env = {"RUN_DIR": job, "TRAINER_ATTEMPT": 3, "TRAINER_JOB_ID": 4711, "TORCHINDUCTOR_CACHE_DIR": job / "cache"}
        for name, value in env.items():
            monkeypatch.setenv(name, str(value))

    def train(self, folder, steps, *, stops_at=None, **options):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        with Session(model=model, optimizer=optimizer, folder=folder, **options) as session:
            for step in session.steps(steps):
                optimizer.zero_grad()
                model(torch.randn(4, 2)).square().mean().backward()
                if step == stops_at:
                    (folder.parent / "STOP").write_text("time-limit 4711/3\n")
                optimizer.step()

    def test_time_limit_of_job_stops_session_in_subfolder(self, job, monkeypatch):
        monkeypatch.setattr("slipway.run.attempt.time.monotonic", iter(range(10**6)).__next__)  # it checks each time
        self.train(job / "fold0", 4)
        with pytest.raises(Stopped):
            self.train(job / "fold1", 400, stops_at=2)
        state, step, reason = verdict(job).split()
        assert (state, reason) == ("out-of-time", "time-limit")
        assert 3 <= int(step) < 400
        status = json.loads((job / "fold1" / "status.json").read_text())
        assert (status["attempt"], status["state"], status["step"]) == (3, "stopped", int(step))

    def test_refused_session_writes_cause_of_attempt(self, job):
        self.train(job / "fold0", 4)
        with pytest.raises(SlipwayError):
            self.train(job / "fold0", 8, seed=7)
        assert (job / "logs" / "3" / "cause").read_text().startswith("78 different-run: ")
        remove_cause()

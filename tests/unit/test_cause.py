"""The cause file that a rank writes for the job script if it ends before training."""

import contextlib
import socket

import pytest
import torch

from slipway import Session
from slipway.base.errors import AllDamagedError, SlipwayError, StateMismatchError, TrackerError, explain
from slipway.run.cause import LONGEST, write_cause
from trainer.config.errors import ConfigError, TrainerError

HOST = socket.gethostname()
NO_GPU = ConfigError("no-gpu", "why")
NO_FLAG = ConfigError("unknown-flag", "--frob")
DAMAGED = AllDamagedError(count=2, folder="a")


@pytest.fixture
def attempt(tmp_path, monkeypatch):
    """Return the folder that a job script makes for the third attempt."""
    folder = tmp_path / "logs" / "3"
    folder.mkdir(parents=True)
    monkeypatch.setenv("RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TRAINER_ATTEMPT", "3")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))  # which a job keeps in its run folder
    return folder


def leave(attempt, error, **variables):
    write_cause(error, folder=attempt.parents[1], variables={"TRAINER_ATTEMPT": "3", **variables})


def marked(attribute):
    error = ConfigError("no-gpu", "why")
    setattr(error, attribute, True)
    return error


def left(attempt):
    path = attempt / "cause"
    return path.read_text() if path.exists() else None


class TestWriteCause:
    @pytest.mark.parametrize(
        ("error", "line"),
        [
            (NO_GPU, f"78 no-gpu: {HOST}: [rank 1] why\n"),
            (DAMAGED, f"78 damaged-checkpoint: {HOST}: [rank 1] {explain(DAMAGED)}\n"),
            (NO_FLAG, f"2 unknown-flag: {HOST}: [rank 1] --frob\n"),
            (marked("raised_on_all_ranks"), "78 no-gpu: why\n"),
            (marked("in_training"), None),
            (TrainerError("diverged", "why"), None),
            (SlipwayError("lost-peer", "why"), None),
        ],
    )
    def test_only_permanent_errors_before_training_are_written(self, attempt, error, line):
        leave(attempt, error, RANK="1")
        assert left(attempt) == line

    def test_first_cause_is_kept(self, attempt):
        leave(attempt, NO_FLAG, RANK="1")
        leave(attempt, NO_GPU, RANK="0")
        assert left(attempt) == f"2 unknown-flag: {HOST}: [rank 1] --frob\n"

    def test_cause_is_one_line_for_any_error_text(self, attempt):
        leave(attempt, ConfigError("no-gpu", "a\nb\x1b[31m\0c \udcff" + "d" * 9999))
        text = left(attempt)
        assert text.startswith(f"78 no-gpu: {HOST}: a b [31m c d")
        assert (text.count("\n"), len(text)) == (1, LONGEST + len("78 no-gpu: \n"))

    @pytest.mark.parametrize("number", ["", "0", "4", "no number", "../3"])
    def test_cause_is_written_only_to_attempt_folder_of_job_script(self, attempt, number):
        leave(attempt, NO_GPU, TRAINER_ATTEMPT=number)
        write_cause(NO_GPU, folder=None, variables={"TRAINER_ATTEMPT": "3"})
        assert sorted(path.name for path in attempt.parents[1].rglob("*")) == ["3", "logs"]

    def test_unwritable_attempt_folder_raises_nothing(self, attempt):
        attempt.rmdir()
        attempt.write_text("no folder")
        leave(attempt, NO_GPU)


class TestSession:
    @pytest.fixture
    def session(self):
        model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return lambda **words: Session(model=model, optimizer=self.optimizer, **words)

    def test_refused_session_writes_cause(self, attempt, session):
        with pytest.raises(TrackerError), session(trackers="none"):
            pass
        assert left(attempt).startswith("78 unknown-tracker: ")
        assert "'none'" in left(attempt)

    @pytest.mark.parametrize("steps", [0, 1])
    def test_error_in_session_writes_cause_only_before_first_step(self, attempt, session, steps):
        def train():
            with session() as opened:
                for step in opened.steps(9):
                    if step == steps:
                        raise StateMismatchError("different-state", "model")
                    self.optimizer.step()

        with pytest.raises(StateMismatchError):
            train()
        assert (left(attempt) is None) == bool(steps)

    def test_error_of_user_script_writes_no_cause(self, attempt, session):
        with pytest.raises(ZeroDivisionError), session():
            raise ZeroDivisionError
        assert left(attempt) is None

    def test_cause_is_removed_if_script_catches_error_and_trains(self, attempt, session):
        with contextlib.suppress(TrackerError), session(trackers="none"):
            pass
        assert left(attempt)
        with session():
            assert left(attempt) is None

    def test_cause_of_another_rank_is_kept(self, attempt, session):
        (attempt / "cause").write_text("78 of another rank\n")
        with contextlib.suppress(TrackerError), session(trackers="none"):
            pass
        with session():
            assert left(attempt) == "78 of another rank\n"

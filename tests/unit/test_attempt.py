"""An attempt: ownership of the run folder, what it records, and how it handles stop requests."""

import errno
import json
import os
import stat

import pytest
import torch

from messages import refused
from slipway.base.contract import VERDICTS
from slipway.base.environment import read_environment
from slipway.base.errors import (
    FolderNotWritableError,
    LostFolderError,
    SlipwayError,
    reason_of,
)
from slipway.base.stop import Reason
from slipway.dist.communicator import Alone
from slipway.run.attempt import acquire, open_folder
from slipway.run.run_folder import RunFolder

DIVERGED = SlipwayError("diverged", "loss nan")
FULL = OSError(errno.ENOSPC, "No space left on device")
LASTING = [
    SlipwayError("different-run", "train.seed was 0"),
    DIVERGED,
    FULL,
    RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
]
PASSING = [
    RuntimeError("Connection closed by peer"),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    OSError(errno.EIO, "Input/output error"),
    RuntimeError("Error while serializing: I/O error: Input/output error (os error 5)"),
    LostFolderError(lock="run/lock"),
    KeyboardInterrupt(),
    KeyError("a bug"),
]


def acquired(path, **env):
    return acquire(RunFolder(path), read_environment(env))


def opened(path, *, may_continue=True, **env):
    return open_folder(RunFolder(path), read_environment(env), Alone(torch.device("cpu")), may_continue=may_continue)


def begin(owned, step=0):
    return owned.begin(config="[model]\n", provenance={"host": "node1"}, step=step)


def begun(path, step=0, **env):
    return begin(acquired(path, **env), step)


def owned_after_begin(path, step=0, **env):
    owned = acquired(path, **env)
    begin(owned, step)
    return owned


def ended(path, reason=Reason.NONE, step=9):
    """Write to ``path`` what an attempt that ended for ``reason`` leaves."""
    begun(path).conclude(reason, step=step)


def failed(path):
    """Write to ``path`` what a failed attempt leaves."""
    owned_after_begin(path).fail(DIVERGED)


def saved(path, step):
    """Save a checkpoint in ``path``."""
    (path / "checkpoints" / f"step_{step:08d}").mkdir(parents=True)
    (path / "checkpoints" / "latest").unlink(missing_ok=True)
    (path / "checkpoints" / "latest").symlink_to(f"step_{step:08d}")


def changed_by(path, error, **env):
    """Fail an attempt with ``error`` between owning the folder and beginning; return what that changed."""
    before = snapshot(path)
    with pytest.raises(type(error)), opened(path, **env):
        raise error
    after = snapshot(path)
    assert before.keys() <= after.keys()
    return {name: text for name, text in after.items() if before.get(name) != text}


def status_of(path):
    return json.loads((path / "status.json").read_text())


def verdict_of(path, attempt=1):
    return (path / f"verdict.{attempt}").read_text()


def snapshot(path):
    """Return the bytes of each file below ``path``, by name."""
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def umask():
    """Set the umask for one test."""
    before = os.umask(0o077)
    yield os.umask
    os.umask(before)


class TestAcquire:
    def test_run_folder_is_created_with_parents_and_mode_0700(self, tmp_path):
        path = tmp_path / "runs" / "mine"
        acquired(path)
        assert {entry.name for entry in path.iterdir()} == {"checkpoints", "figures", "lock", "logs"}
        assert stat.S_IMODE(path.stat().st_mode) == 0o700

    def test_existing_folder_keeps_mode_and_new_files_follow_umask(self, tmp_path, umask):
        path = tmp_path / "mine"
        path.mkdir()
        path.chmod(0o750)
        umask(0o027)
        begun(path)
        folders = [path, *(entry for entry in path.rglob("*") if entry.is_dir())]
        assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o750}
        assert {stat.S_IMODE(entry.stat().st_mode) for entry in path.rglob("*") if entry.is_file()} == {0o640}

    def test_transient_disk_error_is_retryable_and_leaves_no_verdict(self, tmp_path, monkeypatch):
        def stale(*_, **__):
            raise OSError(errno.ESTALE, "Stale file handle")

        monkeypatch.setattr("slipway.run.lock.Lock.acquire", stale)
        with pytest.raises(FolderNotWritableError) as error, opened(tmp_path, TRAINER_ATTEMPT="2"):
            pytest.fail("it was let in")
        assert (error.value.retryable, error.value.exit_code) == (True, 1)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
    def test_lock_is_released_if_creating_subfolders_fails(self, tmp_path, monkeypatch, error):
        mkdir = os.mkdir

        def failing(path, *arguments):
            if str(path).endswith("logs"):
                raise error
            mkdir(path, *arguments)

        monkeypatch.setattr(os, "mkdir", failing)
        with pytest.raises((FolderNotWritableError, KeyboardInterrupt)):
            acquired(tmp_path)
        assert not (tmp_path / "lock").exists()

    def test_run_folder_path_at_or_below_file_is_refused(self, tmp_path):
        (tmp_path / "file").touch()
        for path in (tmp_path / "file", tmp_path / "file" / "below"):
            with refused("cannot-write", path, code=78):
                acquired(path)

    @pytest.mark.parametrize(
        ("text", "number"),
        [
            *((text, 1) for text in ("", "null", "{}", '{"attempt": 1}', "[" * 100_000)),  # invalid: they count as none
            ('{"attempt": "7", "state": "done"}', 1),
            ('{"attempt": 1e400, "state": "done"}', 1),
            ('{"attempt": 4, "state": "done", "nodes": 3}', 5),  # fields that a later version added are ignored
        ],
        ids=range(8),
    )
    def test_attempt_number_continues_from_valid_status_file(self, tmp_path, text, number):
        (tmp_path / "status.json").write_text(text)
        assert begun(tmp_path).number == number

    @pytest.mark.parametrize("left", ["logs/6", "verdict.6"])
    def test_attempt_number_counts_log_folders_and_verdicts(self, tmp_path, left):
        ended(tmp_path)
        for name in (left, "logs/samples.rank9.jsonl", "verdict.x", ".verdict.9.123"):
            (tmp_path / name).mkdir()
        assert begun(tmp_path).number == 7

    def test_attempt_number_increments_unless_job_script_sets_it(self, tmp_path):
        for number, env in enumerate([{}, {}, {"TRAINER_ATTEMPT": ""}, {"TRAINER_ATTEMPT": "7"}], start=1):
            owned = owned_after_begin(tmp_path, **env)
            assert owned.attempt.number == (7 if env.get("TRAINER_ATTEMPT") else number)
            owned.release()

    def test_attempt_number_taken_concurrently_by_job_script_is_skipped(self, tmp_path, monkeypatch):
        owned = acquired(tmp_path)
        for number in (1, 2):
            (tmp_path / "logs" / str(number)).mkdir()
        monkeypatch.setattr(RunFolder, "last_attempt", 0)
        assert begin(owned).number == 3


def test_fifo_named_lock_is_refused_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "lock")
    with refused("cannot-write", tmp_path) as error:
        acquired(tmp_path)
    assert error.value.__cause__.errno == errno.EINVAL


def test_fifo_named_stop_is_not_a_stop_request(tmp_path):
    os.mkfifo(tmp_path / "STOP")
    assert begun(tmp_path).stop_request() == Reason.NONE


@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "regular"), (os.mkdir, "folder")])
@pytest.mark.parametrize("name", ["status.json", "run.json", "config.toml", "metrics.jsonl", "goodput.jsonl"])
def test_folder_or_fifo_named_like_run_file_is_refused(tmp_path, name, make, kind):
    make(tmp_path / name)
    with refused("not-a-file", tmp_path / name, kind):
        acquired(tmp_path)
    assert not (tmp_path / "lock").exists()


class TestOpenAttempt:
    @pytest.mark.parametrize("with_status", [True, False])
    def test_existing_run_is_refused_unless_continuation_is_requested(self, tmp_path, with_status):
        ended(tmp_path)
        saved(tmp_path, 1)
        if not with_status:
            (tmp_path / "status.json").unlink()
        with refused("folder-holds-run", tmp_path), opened(tmp_path, may_continue=False):
            pytest.fail("it was let in")
        with opened(tmp_path):
            pass

    def test_folder_of_failed_run_without_checkpoint_is_accepted(self, tmp_path):
        failed(tmp_path)
        with opened(tmp_path, may_continue=False):
            pass

    def test_attempt_without_conclusion_has_status_failed(self, tmp_path):
        with pytest.raises(RuntimeError, match="conclude"), opened(tmp_path) as ownership:
            begin(ownership.on_root)
        assert (status_of(tmp_path)["state"], list(tmp_path.glob("verdict.*"))) == ("failed", [])

    def test_lock_is_removed_when_folder_is_closed(self, tmp_path):
        for _ in range(2):
            with opened(tmp_path):
                assert (tmp_path / "lock").exists()
            assert not (tmp_path / "lock").exists()


class TestBegin:
    def test_run_records_are_written_to_run_and_attempt_folders(self, tmp_path):
        owned_after_begin(tmp_path, TRAINER_JOB_ID="42", WANDB_API_KEY="a-secret-token").release()
        record = json.loads((tmp_path / "run.json").read_text())
        assert record == {"host": "node1", "attempt": 1, "variables": {"TRAINER_JOB_ID": "42"}}
        assert (tmp_path / "config.toml").read_text() == "[model]\n"
        assert status_of(tmp_path)["state"] == "running"
        first = snapshot(tmp_path / "logs" / "1")
        assert first["run.json"] == (tmp_path / "run.json").read_bytes()
        begun(tmp_path, step=5)
        assert snapshot(tmp_path / "logs" / "1") == first
        assert json.loads((tmp_path / "run.json").read_text())["attempt"] == 2

    def test_attempt_folder_made_by_job_script_is_used(self, tmp_path):
        (tmp_path / "logs" / "3").mkdir(parents=True)
        begun(tmp_path, TRAINER_ATTEMPT="3").conclude(Reason.NONE, step=1)
        assert {path.name for path in (tmp_path / "logs" / "3").iterdir()} == {
            "config.toml",
            "run.json",
            "status.json",
        }


class TestStatus:
    def test_status_is_one_line_with_only_contract_fields(self, tmp_path):
        begun(tmp_path, step=3).conclude(Reason.TIME_LIMIT, step=9)
        assert (tmp_path / "status.json").read_text().count("\n") == 1
        assert status_of(tmp_path) == {
            "attempt": 1,
            "state": "stopped",
            "reason": "time-limit",
            "start_step": 3,
            "step": 9,
            "requeue": True,
        }
        assert (tmp_path / "logs" / "1" / "status.json").read_bytes() == (tmp_path / "status.json").read_bytes()

    def test_failed_attempt_reports_last_checkpoint_and_releases_lock(self, tmp_path):
        attempt = owned_after_begin(tmp_path, step=5)
        saved(tmp_path, 8)
        attempt.fail(DIVERGED)
        assert status_of(tmp_path) == {
            "attempt": 1,
            "state": "failed",
            "reason": "diverged: loss nan",
            "start_step": 5,
            "step": 8,
            "requeue": False,
        }
        assert verdict_of(tmp_path) == "failed 8 diverged: loss nan\n"
        assert not (tmp_path / "lock").exists()

    def test_failed_attempt_after_requeued_attempt_is_not_requeued(self, tmp_path):
        ended(tmp_path, Reason.TIME_LIMIT)
        failed(tmp_path)
        assert (status_of(tmp_path)["attempt"], status_of(tmp_path)["requeue"]) == (2, False)

    def test_attempt_that_lost_folder_leaves_new_owners_status_unchanged(self, tmp_path):
        first = owned_after_begin(tmp_path, TRAINER_JOB_ID="1", TRAINER_ATTEMPT="1")
        second = begun(tmp_path, TRAINER_JOB_ID="1", TRAINER_ATTEMPT="2")
        for act in (first.attempt.check, lambda: first.attempt.conclude(Reason.NONE, step=3), lambda: begin(first)):
            with refused("lost-folder", tmp_path / "lock"):
                act()
        first.fail(DIVERGED)
        assert (status_of(tmp_path)["attempt"], status_of(tmp_path)["state"]) == (2, "running")
        assert not (tmp_path / "verdict.1").exists()
        second.check()


class TestVerdict:
    """The one-line verdict that the job script reads."""

    @pytest.mark.parametrize(
        ("reason", "start", "step", "line"),
        [
            (Reason.NONE, 0, 9, "done 9 complete\n"),
            (Reason.TIME_LIMIT, 8, 9, "out-of-time 9 time-limit\n"),
            (Reason.TIME_LIMIT, 9, 9, "stopped 9 time-limit\n"),
            (Reason.USER, 0, 9, "stopped 9 user\n"),
            (Reason.SIGNAL, 0, 0, "stopped 0 signal\n"),
        ],
    )
    def test_done_or_stopped_attempt_writes_verdict(self, tmp_path, reason, start, step, line):
        begun(tmp_path, step=start).conclude(reason, step=step)
        assert verdict_of(tmp_path) == line
        assert line.split()[0] in VERDICTS
        assert not (tmp_path / "lock").exists()

    @pytest.mark.parametrize("error", LASTING, ids=repr)
    def test_permanent_error_writes_verdict(self, tmp_path, error):
        owned_after_begin(tmp_path).fail(error)
        assert verdict_of(tmp_path) == f"failed 0 {reason_of(error)}\n"

    @pytest.mark.parametrize("error", PASSING, ids=repr)
    def test_transient_error_writes_no_verdict(self, tmp_path, error):
        owned_after_begin(tmp_path).fail(error)
        assert list(tmp_path.glob("verdict.*")) == []
        assert status_of(tmp_path)["state"] == "failed"

    def test_verdict_reason_is_one_printable_line(self, tmp_path):
        owned_after_begin(tmp_path).fail(SlipwayError("no-data", "a\nb\x1b[31m\u2028c\udcff: look"))
        assert verdict_of(tmp_path) == "failed 0 no-data: a b [31m c : look\n"

    def test_unwritable_verdict_fails_attempt_and_releases_lock(self, tmp_path):
        owned = owned_after_begin(tmp_path)
        (tmp_path / "verdict.1").mkdir()  # a folder in its place: a mode would not stop root
        with pytest.raises(OSError, match="Is a directory"):
            owned.attempt.conclude(Reason.NONE, step=9)
        owned.fail(DIVERGED)
        assert status_of(tmp_path)["state"] == "failed"
        assert not (tmp_path / "lock").exists()


class TestRefusal:
    """A refused attempt reports the refusal to the job script and changes nothing else."""

    ERROR = SlipwayError("different-run", "train.seed was 0")
    REASON = "different-run: train.seed was 0"

    @pytest.mark.parametrize(("attempt", "changes"), [("5", {"verdict.5": f"failed 9 {REASON}\n".encode()}), ("", {})])
    def test_refusal_writes_verdict_only_if_job_script_numbers_attempts(self, tmp_path, attempt, changes):
        ended(tmp_path, Reason.TIME_LIMIT)
        saved(tmp_path, 9)
        assert changed_by(tmp_path, self.ERROR, TRAINER_ATTEMPT=attempt) == changes

    def test_refusal_in_folder_without_run_writes_reason_to_status(self, tmp_path):
        changed = changed_by(tmp_path, self.ERROR)
        assert changed.keys() == {"status.json"}
        assert (status_of(tmp_path)["state"], status_of(tmp_path)["reason"]) == ("failed", self.REASON)

    def test_running_run_refuses_second_attempt_and_stays_unchanged(self, tmp_path):
        begun(tmp_path, step=7)
        before = snapshot(tmp_path)
        with refused("folder-in-use", os.getpid(), tmp_path), opened(tmp_path, TRAINER_ATTEMPT="2"):
            pytest.fail("it was let in")
        after = snapshot(tmp_path)
        assert after.pop("verdict.2").startswith(b"failed 7 folder-in-use: ")
        assert after == before

    @pytest.mark.parametrize(("attempt", "leaves"), [("", {}), ("3", {"verdict.3": b"failed 0 no-gpu: on a b\n"})])
    def test_refusal_before_folder_is_acquired_writes_only_verdict(self, tmp_path, attempt, leaves):
        environment = read_environment({"TRAINER_ATTEMPT": attempt})
        for folder in (tmp_path, tmp_path / "gone"):
            RunFolder(folder).refuse(SlipwayError("no-gpu", "on a\nb"), environment)
        assert snapshot(tmp_path) == leaves
        assert not (tmp_path / "gone").exists()


class TestStopFile:
    @staticmethod
    def write(path, text):
        (path / "STOP").write_text(f"{text}\n")

    @pytest.mark.parametrize("word", ["user", "time-limit"])
    def test_stop_file_is_read_once_per_second(self, tmp_path, monkeypatch, word):
        attempt = begun(tmp_path)
        now = [100.0]
        monkeypatch.setattr("slipway.run.attempt.time.monotonic", lambda: now[0])
        assert attempt.stop_request() == Reason.NONE
        self.write(tmp_path, word)
        now[0] = 100.9
        assert attempt.stop_request() == Reason.NONE
        now[0] = 101.0
        assert attempt.stop_request().word == word
        assert attempt.stop_request().word == word, "the result is cached until the next check"

    def test_stop_file_is_kept_until_attempt_begins(self, tmp_path):
        ended(tmp_path, Reason.TIME_LIMIT)
        self.write(tmp_path, "time-limit")
        acquired(tmp_path).release()
        assert (tmp_path / "STOP").exists()

    @pytest.mark.parametrize(
        ("meant", "reason"),
        [("", Reason.NONE), ("4711/1", Reason.NONE), ("4712/2", Reason.NONE), ("4711/2", Reason.TIME_LIMIT)],
    )
    def test_time_limit_stop_for_other_attempt_is_removed_at_start(self, tmp_path, meant, reason):
        ended(tmp_path, Reason.TIME_LIMIT)
        self.write(tmp_path, f"time-limit {meant}")
        assert begun(tmp_path, TRAINER_JOB_ID="4711", TRAINER_ATTEMPT="2").stop_request() == reason
        assert (tmp_path / "STOP").exists() == bool(reason)

    # regression: if a signal came too, the status named the signal, and STOP also stopped the next attempt
    @pytest.mark.parametrize("before", [Reason.USER, Reason.SIGNAL, Reason.TIME_LIMIT, Reason.NONE])
    def test_user_stop_written_during_attempt_is_removed_afterwards(self, tmp_path, before):
        attempt = begun(tmp_path)
        self.write(tmp_path, "user")
        attempt.conclude(before, step=9)
        assert begun(tmp_path).stop_request() == Reason.NONE
        assert not (tmp_path / "STOP").exists()

    @pytest.mark.parametrize("before", [Reason.USER, Reason.NONE])
    def test_user_stop_written_during_start_stops_new_attempt(self, tmp_path, before):
        ended(tmp_path, before)
        self.write(tmp_path, "user")
        owned = acquired(tmp_path)
        (tmp_path / "STOP").unlink()
        self.write(tmp_path, "user")
        assert begin(owned).stop_request() == Reason.USER

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
    def test_time_limit_stop_for_older_attempt_is_ignored(self, tmp_path, meant, reason):
        attempt = begun(tmp_path, TRAINER_JOB_ID="4711", TRAINER_ATTEMPT="2")
        self.write(tmp_path, f"time-limit {meant}")
        assert attempt.stop_request() == reason

    @pytest.mark.parametrize(
        ("leave", "reason"),
        [
            (lambda path: ended(path, Reason.TIME_LIMIT), Reason.USER),
            (lambda path: ended(path, Reason.USER), Reason.USER),
            (failed, Reason.USER),
            (lambda _: None, Reason.USER),
            (ended, Reason.NONE),
        ],
        ids=["out of time", "stopped", "failed", "none", "done"],
    )
    def test_user_stop_between_attempts_applies_unless_run_was_done(self, tmp_path, leave, reason):
        leave(tmp_path)
        self.write(tmp_path, "user")
        assert begun(tmp_path).stop_request() == reason
        assert (tmp_path / "STOP").exists() == bool(reason)

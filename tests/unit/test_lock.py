"""Lock of a run folder: two runs never share one."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from messages import refused
from slipway.base.errors import FolderInUseError, NotAFileError
from slipway.run import lock as lock_module
from slipway.run.lock import STALE, Lock
from support import file_size_limit

HOLD = """
import sys
from pathlib import Path
from slipway.base.errors import FolderInUseError
from slipway.run.lock import Lock

lock = Lock(Path(sys.argv[1]), job_id="", attempt=1)
print("ready", flush=True)
sys.stdin.readline()
try:
    lock.acquire()
    print("holds", flush=True)
except FolderInUseError:
    print("refused", flush=True)
sys.stdin.readline()
"""
"""A process that takes the lock at the first line of its input and holds it until the second."""


class Holder:
    """Another process that holds the lock or was refused."""

    def __init__(self, folder):
        words = [sys.executable, "-c", HOLD, str(folder)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def start(self):
        print(file=self.process.stdin, flush=True)

    def outcome(self):
        return self.process.stdout.readline().strip()

    def kill(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def holder(tmp_path):
    """Return a living process that holds the lock of ``tmp_path``."""
    holder = Holder(tmp_path)
    holder.start()
    assert holder.outcome() == "holds"
    yield holder
    holder.kill()


def lock_of(folder, *, job_id="", attempt=1):
    return Lock(folder, job_id=job_id, attempt=attempt)


def acquired(folder, **owner):
    lock = lock_of(folder, **owner)
    lock.acquire()
    return lock


def lock_from_elsewhere(folder, *, age=0.0, **owner):
    """Write the lock of an owner on another host whose last heartbeat was ``age`` seconds ago."""
    record = {"host": "elsewhere", "pid": 1234, "pid_namespace": 1, "pid_start": "5", "job_id": "77", "attempt": 1}
    path = folder / "lock"
    path.write_text(json.dumps(record | owner))
    os.utime(path, (time.time() - age,) * 2)


@contextmanager
def beating(folder):
    """Write heartbeats for the owner of ``folder``'s lock."""
    ended = threading.Event()

    def beat():
        while not ended.wait(0.05):
            os.utime(folder / "lock")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Let an owner on another host count as dead after half a second."""
    monkeypatch.setattr(lock_module, "POLL", 0.01)
    monkeypatch.setattr(lock_module, "STALE", 0.5)


def in_use(lock, *values):
    """Assert that the folder is refused and that the error names ``values``."""
    with refused("folder-in-use", *values, code=78) as error:
        lock.acquire()
    assert str(error.value).isprintable()
    assert error.value.facts["folder"] == lock._path.parent
    return error.value.facts


def test_free_folder_is_locked_and_released(tmp_path):
    lock = acquired(tmp_path, job_id="42", attempt=3)
    record = json.loads((tmp_path / "lock").read_text())
    assert record["pid_namespace"] == Path("/proc/self/ns/pid").stat().st_ino
    expected = {"pid": os.getpid(), "host": os.uname().nodename, "job_id": "42", "attempt": 3}
    assert record.items() >= expected.items()
    lock.check()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_lock_of_live_owner_is_refused_and_kept(tmp_path, holder):
    before = (tmp_path / "lock").read_text()
    in_use(lock_of(tmp_path), holder.process.pid, os.uname().nodename)
    assert (tmp_path / "lock").read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["lock"]


def become_zombie(holder):
    holder.process.kill()
    os.waitid(os.P_PID, holder.process.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("end", [Holder.kill, become_zombie])
def test_lock_of_dead_owner_on_same_host_is_taken_immediately(tmp_path, holder, end):
    end(holder)
    acquired(tmp_path).check()


# regression: a user's file with this name was taken for the lock of a dead owner and replaced
@pytest.mark.parametrize("data", [b"mine", b"null", b"[1]", b"\xff\xfe", b'{"hosts": 1}'])
def test_file_that_is_not_a_lock_is_kept(tmp_path, data):
    (tmp_path / "lock").write_bytes(data)
    os.utime(tmp_path / "lock", (0, 0))
    for call in (lock_of(tmp_path).require_free, lock_of(tmp_path).acquire):
        with pytest.raises(NotAFileError, match="lock"):
            call()
    assert (tmp_path / "lock").read_bytes() == data


@pytest.mark.usefixtures("holder")
def test_owner_whose_pid_was_reused_is_considered_dead(tmp_path):
    record = json.loads((tmp_path / "lock").read_text())
    (tmp_path / "lock").write_text(json.dumps(record | {"pid": os.getpid()}))
    lock_of(tmp_path).acquire()


@pytest.mark.parametrize("difference", [{"boot_id": "elsewhere"}, {"pid_namespace": 1}])
def test_pid_of_other_host_or_namespace_is_ignored(tmp_path, holder, difference):
    record = json.loads((tmp_path / "lock").read_text())
    holder.kill()
    (tmp_path / "lock").write_text(json.dumps(record | difference))
    with beating(tmp_path):
        in_use(lock_of(tmp_path))


def test_later_attempt_of_same_job_takes_over_lock(tmp_path):
    lock_from_elsewhere(tmp_path, job_id="77", attempt=1)
    acquired(tmp_path, job_id="77", attempt=2).check()


@pytest.mark.parametrize(
    ("owner", "job_id", "attempt"),
    [
        ("77", "", 1),
        ("77", "77", 1),  # the same attempt
        ("77", "78", 2),
        ("77", "", 2),
        ("", "", 2),  # two runs without a job are not attempts of one
    ],
)
def test_lock_of_live_owner_on_other_host_is_kept(tmp_path, owner, job_id, attempt):
    lock_from_elsewhere(tmp_path, job_id=owner, attempt=1)
    lock = lock_of(tmp_path, job_id=job_id, attempt=attempt)
    with beating(tmp_path):
        assert in_use(lock, 1234, "elsewhere", 60)["job"] == (owner or "none")
        with pytest.raises(FolderInUseError):
            lock.require_free()


def test_lock_without_heartbeat_is_taken_after_waiting(tmp_path):
    """A node died a second ago; the job that continues the run has another number and must not be refused."""
    lock_from_elsewhere(tmp_path)
    before = time.monotonic()
    acquired(tmp_path).check()
    assert time.monotonic() - before > 0.4


def test_lock_with_stale_heartbeat_is_taken_immediately(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "POLL", 1000)
    lock_from_elsewhere(tmp_path, age=5)
    lock_of(tmp_path).acquire()


def test_require_free_waits_for_only_two_heartbeats(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "STALE", STALE)
    monkeypatch.setattr(lock_module, "HEARTBEAT", 0.05)
    lock_from_elsewhere(tmp_path)
    lock_of(tmp_path).require_free()
    assert json.loads((tmp_path / "lock").read_text())["host"] == "elsewhere"


def test_wait_for_stale_lock_restarts_for_new_owner(tmp_path, monkeypatch):
    """Another run takes over the dead owner's lock while this one watches it."""
    lock_from_elsewhere(tmp_path)
    began = time.monotonic()
    taken = []

    def look(path, look=lock_module._look):
        if time.monotonic() - began > 0.4 and not taken:
            lock_from_elsewhere(tmp_path, pid=4321)
            taken.append(time.monotonic())
        return look(path)

    monkeypatch.setattr(lock_module, "_look", look)
    lock_of(tmp_path).acquire()
    assert time.monotonic() - taken[0] > 0.45


def test_full_disk_leaves_no_empty_lock(tmp_path):
    with file_size_limit(10), pytest.raises(OSError, match="File too large"):
        lock_of(tmp_path).acquire()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("data", [b"", b'{"host": "a', b"\0\0\0\0", b'{"host": \xff\xfe', b'{"host": 1]'])
def test_partially_written_lock_is_judged_by_age(tmp_path, data):
    path = tmp_path / "lock"
    path.write_bytes(data)
    with beating(tmp_path):
        in_use(lock_of(tmp_path))
    lock_of(tmp_path).acquire()


def test_lock_owner_writes_heartbeats(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "HEARTBEAT", 0.02)
    lock = acquired(tmp_path)
    path = tmp_path / "lock"
    os.utime(path, (0, 0))
    deadline = time.monotonic() + 300
    while path.stat().st_mtime == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert time.time() - path.stat().st_mtime < 10
    lock.release()


@pytest.mark.parametrize("lose", [lock_from_elsewhere, lambda folder: (folder / "lock").unlink()])
def test_lost_lock_is_detected_and_not_released(tmp_path, lose):
    lock = acquired(tmp_path)
    lose(tmp_path)
    found = [path.read_bytes() for path in tmp_path.iterdir()]
    with refused("lost-folder", tmp_path / "lock"):
        lock.check()
    lock.release()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == found


def killed_take_over(folder, monkeypatch):
    """Leave what a process leaves if it is killed while it takes over a dead owner's lock; return its claim."""
    lock_from_elsewhere(folder, age=STALE + 5)
    with monkeypatch.context() as killed:
        killed.setattr(Path, "rename", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            lock_of(folder).acquire()
    (claim,) = folder.glob(".lock.after.*")
    return claim


def test_killed_takeover_does_not_block_folder(tmp_path, monkeypatch):
    claim = killed_take_over(tmp_path, monkeypatch)
    in_use(lock_of(tmp_path), os.getpid())  # this process still lives
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"pid_start": "1"}))
    lock = acquired(tmp_path)
    lock.check()
    lock.release()
    assert not list(tmp_path.iterdir())


def test_delayed_process_with_stale_claim_leaves_new_owner_unchanged(tmp_path, monkeypatch):
    """A process finds the claim of a killed process and is delayed until another one has taken the folder."""
    late, other = lock_of(tmp_path), lock_of(tmp_path, attempt=2)
    claim = killed_take_over(tmp_path, monkeypatch)
    claim.write_text(json.dumps(json.loads(claim.read_text()) | {"pid_start": "1"}))
    find_stale_owner = late._find_stale_owner

    def find_late(path, *, patience):
        found = find_stale_owner(path, patience=patience)
        if path == claim:
            other.acquire()
        return found

    monkeypatch.setattr(late, "_find_stale_owner", find_late)
    in_use(late, os.getpid())
    other.check()
    other.release()
    assert not list(tmp_path.iterdir())


def test_delayed_takeover_leaves_new_owner_unchanged(tmp_path, monkeypatch):
    """A process reads a dead owner's lock and is delayed until another one has replaced it."""
    lock_from_elsewhere(tmp_path, age=STALE + 5)
    late, other = lock_of(tmp_path), lock_of(tmp_path, attempt=2)
    create = late._create

    def create_late(path):
        if path.name != "lock" and not other_has_it:
            other_has_it.append(other.acquire())
        return create(path)

    other_has_it = []
    monkeypatch.setattr(late, "_create", create_late)
    in_use(late, os.getpid())
    other.check()
    other.release()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", ["nothing", "a dead owner"])
def test_exactly_one_of_several_concurrent_processes_gets_lock(tmp_path, left):
    if left == "a dead owner":
        lock_from_elsewhere(tmp_path, age=STALE + 5)
    holders = [Holder(tmp_path) for _ in range(5)]
    try:
        for holder in holders:
            holder.start()
        outcomes = sorted(holder.outcome() for holder in holders)
    finally:
        for holder in holders:
            holder.kill()
    assert outcomes == ["holds"] + ["refused"] * 4

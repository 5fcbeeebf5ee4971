"""`make gpu`: its results if a part fails or hangs, and if it is stopped or killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from support import ROOT

ENDS = """
import time

def test_passes(record):
    record(speed=1.5)

def test_fails():
    assert 2 == 3
"""
HANGS = """
import tempfile

def test_hangs():
    tempfile.mkdtemp()
    time.sleep(600)
"""


@pytest.fixture
def checkout(tmp_path):
    """Yield a copy of the files that `make gpu` reads; the calling test writes the tests of the part `start`."""
    copy = tmp_path / "checkout"
    for name in ("build", "bench", "src", "containers", "tests/gpu"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for path in (ROOT / "tests").glob("*.py"):
        shutil.copy(path, copy / "tests")
    yield copy
    for pid in left(copy):  # left by a failed test
        os.kill(pid, signal.SIGKILL)


def start(checkout, content, *flags):
    (checkout / "tests" / "gpu" / "test_start.py").write_text(content)
    temporary = checkout.parent / "tmp"
    temporary.mkdir()
    out = checkout.parent / "out"
    words = [checkout / "build" / "gpu", "start", "--python", sys.executable, "--out", out, *flags]
    return subprocess.Popen(
        [*map(str, words)],
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=(checkout.parent / "log").open("wb"),
        stderr=subprocess.STDOUT,
    )


def part(checkout):
    """Return the part's entry in the table; an empty one before the table exists."""
    try:
        return json.loads((checkout.parent / "out" / "gpu.json").read_text())["parts"][0]
    except FileNotFoundError:
        return {"result": "", "rows": []}


def rows(checkout):
    return {row["row"].rpartition("::")[2]: row for row in part(checkout)["rows"]}


def until(condition, seconds=240):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def left(checkout):
    """Return the run's processes, identified by TMPDIR in their environment."""
    wanted = f"TMPDIR={checkout.parent / 'tmp'}".encode()
    within = wanted + b"/"
    found = []
    for entry in Path("/proc").iterdir():
        try:
            environ = (entry / "environ").read_bytes().split(b"\0") if entry.name.isdigit() else []
        except OSError:
            continue
        if wanted in environ or any(variable.startswith(within) for variable in environ):
            found.append(int(entry.name))
    return found


def assert_nothing_is_left(checkout):
    until(lambda: not left(checkout), seconds=60)
    assert not [*(checkout.parent / "tmp").iterdir()]


def assert_rows_and_logs_are_there(checkout):
    found = rows(checkout)
    assert (found["test_passes"]["result"], found["test_passes"]["values"]) == ("passed", {"speed": 1.5})
    assert (found["test_fails"]["result"], found["test_fails"]["why"]) == ("failed", "assert 2 == 3")
    assert "| speed 1.5 |" in (checkout.parent / "out" / "gpu.md").read_text()
    with tarfile.open(checkout.parent / "out" / "gpu-logs.tar.gz") as tar:
        assert "start/output.log" in tar.getnames()


def test_failed_test_is_recorded_in_result_table(checkout):
    assert start(checkout, ENDS).wait() == 1
    assert re.fullmatch(r"failed\b.* 1", part(checkout)["result"])
    assert_rows_and_logs_are_there(checkout)
    assert_nothing_is_left(checkout)


def test_hanging_part_is_stopped_at_its_limit(checkout):
    assert start(checkout, ENDS + HANGS, "--limit", "5").wait() == 1
    assert re.fullmatch(r"stopped\b.* 5 s", part(checkout)["result"])
    assert_nothing_is_left(checkout)


@pytest.mark.parametrize(
    ("number", "code", "result"), [(signal.SIGTERM, 143, "stopped by SIGTERM"), (signal.SIGKILL, -9, "running")]
)
def test_stopped_or_killed_make_gpu_keeps_results_so_far(number, code, result, checkout):
    process = start(checkout, ENDS + HANGS)
    until(lambda: len(rows(checkout)) == 2 or process.poll() is not None)
    process.send_signal(number)
    assert process.wait() == code
    assert_nothing_is_left(checkout)
    assert part(checkout)["result"] == result
    assert_rows_and_logs_are_there(checkout)


def test_python_without_torch_is_refused(checkout, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    words = [checkout / "build" / "gpu", "--python", tmp_path / "venv" / "bin" / "python", "--out", tmp_path / "out"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert done.stderr.count("\n") == 1

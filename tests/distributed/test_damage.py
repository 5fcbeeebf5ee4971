"""Whatever happens to the newest checkpoint, or while it is written, there is a valid one to go on from."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from messages import assert_warning
from support import train, train_many

FLAGS = ["--epochs", "2", "--keep", "9", "--no-figures"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    train("single", 1, out, *FLAGS)
    return out


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-2])  # the last byte of a manifest is but a line feed


def flip_one_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def empty(file: Path) -> None:
    file.write_bytes(b"")


HARMS = (truncate, flip_one_bit, empty)


def test_a_damaged_latest_checkpoint_is_refused_in_words_and_the_one_before_used(finished, tmp_path):
    files = ("model.safetensors", "optimizer.safetensors", "manifest.json")
    cases = {tmp_path / f"{harm.__name__}-{file}": (harm, file) for harm in HARMS for file in files}
    for out, (harm, file) in cases.items():
        shutil.copytree(finished, out, symlinks=True)
        harm(out / "checkpoints" / "latest" / file)
    trainings = {out: [*FLAGS, "--resume", "auto"] for out in cases}
    for said, (_, file) in zip(train_many("single", 1, trainings, tmp_path / "log"), cases.values(), strict=True):
        assert_warning(said, "damaged-checkpoint", "step_00000046", file)
        assert "resumed at step 23, in epoch 2" in said


def test_a_save_killed_at_any_system_call_leaves_a_valid_latest(tmp_path, table):
    driver = Path(__file__).with_name("save_killed.py")
    result = subprocess.run(
        [sys.executable, driver, tmp_path], capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split(": ") for line in result.stdout.splitlines()]
    needed = {"write", "fsync", "openat", "mkdir", "rename", "symlink", "unlink", "unlinkat", "rmdir", "close"}
    assert needed <= {row[0] for row in rows}
    table("a save killed at each", rows)

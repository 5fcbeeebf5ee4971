"""A valid checkpoint to resume from exists, whatever happens to the newest one, also while it is written."""

import subprocess
import sys
from pathlib import Path

from messages import assert_warning
from support import train_many

FLAGS = ["--epochs", "2", "--keep", "9", "--no-figures"]


def test_run_with_damaged_latest_checkpoint_resumes_from_previous_one(tmp_path):
    """tests/unit/test_checkpoint.py tests every kind of damage."""
    trainings = {tmp_path / file: FLAGS for file in ("model.safetensors", "optimizer.safetensors", "manifest.json")}
    train_many("single", 1, trainings, tmp_path / "log")
    for out in trainings:
        path = out / "checkpoints" / "latest" / out.name
        path.write_bytes(path.read_bytes()[:-2])  # the last byte of a manifest is only a line feed
    resumed = {out: [*flags, "--resume", "auto"] for out, flags in trainings.items()}
    for out, said in zip(resumed, train_many("single", 1, resumed, tmp_path / "log"), strict=True):
        assert_warning(said, "damaged-checkpoint", "step_00000046", out.name)
        assert "resumed at step 23, in epoch 2" in said


def test_save_killed_at_any_system_call_leaves_valid_latest(tmp_path, table):
    driver = Path(__file__).with_name("save_killed.py")
    result = subprocess.run(
        [sys.executable, driver, tmp_path], capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [line.split(": ") for line in result.stdout.splitlines()]
    needed = {"write", "fsync", "openat", "mkdir", "rename", "symlink", "unlink", "unlinkat", "rmdir", "close"}
    assert needed <= {row[0] for row in rows}
    table("a save killed at each", rows)

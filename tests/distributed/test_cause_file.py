"""An error of a single rank before training decides immediately how the attempt ends."""

import socket
import sys

import pytest

from messages import assert_names
from support import DIGITS, ROOT, launch_words, output_of, started

SHARDS = """
import os
from pathlib import Path
from trainer.data.sets.digits import digits

def data(config):
    Path(__file__).with_name(f"shard{os.environ['RANK']}").read_bytes()
    return digits(config)
"""
"""A data set whose part for rank 1 is missing: rank 1 fails after the ranks have joined."""
NO_GPU = """#!/bin/sh
[ "${RANK:-${OMPI_COMM_WORLD_RANK:-}}" != 1 ] || set -- "$@" --device cuda
exec "$PYTHON" "$@"
"""
"""A Python that makes only rank 1 train on a GPU, which does not exist: rank 1 fails before it joins the others."""
USAGE = NO_GPU.replace("--device cuda", "--epoch 3")
UNJOINED = """
import torch
from slipway import Session

model = torch.nn.Linear(2, 2)
with Session(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)):
    pass
"""
"""A script that does not join the process group."""
FLAGS = ["--arch", "mlp", "--epochs", "1", "--no-figures", "--device", "cpu"]


def executable(path, text):
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def folder_of_an_attempt(path):
    """Create a run folder like a job script; return the variables that identify the attempt."""
    (path / "logs" / "1").mkdir(parents=True)
    return {"RUN_DIR": str(path), "TRAINER_ATTEMPT": "1"}


@pytest.fixture
def shards(tmp_path):
    """Return the flags and variables for a data set of two parts, one of which is missing."""
    (tmp_path / "shards.py").write_text(SHARDS)
    (tmp_path / "shard0").touch()
    return ["--dataset", "shards:data"], {"PYTHONPATH": str(tmp_path)}


@pytest.mark.parametrize(("python", "code", "slug"), [(NO_GPU, "78", "no-gpu"), (USAGE, "2", "unknown-flag")])
@pytest.mark.parametrize("launcher", ["torchrun", pytest.param("mpirun", marks=pytest.mark.horovod)])
def test_rank_that_fails_before_joining_writes_cause_file(launcher, python, code, slug, tmp_path):
    out, wrapper = tmp_path / "run", executable(tmp_path / "python", python)
    words = [*launch_words(launcher, 2), "--output-dir", str(out), *FLAGS]
    words = [wrapper if word == sys.executable else word for word in words]  # of mpirun
    env = {"PYTHON": sys.executable, "PYTHON_EXEC": wrapper, **folder_of_an_attempt(out)}
    with started(words, tmp_path / "log", **env) as launch:
        assert launch.wait() != 0
    (line,) = (out / "logs" / "1" / "cause").read_text().splitlines()
    assert line.startswith(f"{code} {slug}: {socket.gethostname()}: "), launch.output
    assert f"error[{slug}]: {line.split(': ', 2)[2].removeprefix('[rank 1] ')}\n" in launch.output


@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_rank_with_missing_data_writes_cause_file(launcher, shards, tmp_path):
    out, (flags, env) = tmp_path / "run", shards
    words = [*launch_words(launcher, 2), "--output-dir", str(out), *FLAGS, *flags]
    env |= folder_of_an_attempt(out)
    said = output_of(words, tmp_path / "log", code=78 if launcher == "spawn" else 1, **env)
    cause = (out / "logs" / "1" / "cause").read_text()
    assert cause.startswith(f"78 bad-plugin: {socket.gethostname()}: [rank 1] "), said
    assert_names(cause, "--dataset shards:data", "FileNotFoundError: ", "shard1")


def test_refused_script_writes_cause_file(tmp_path):
    (tmp_path / "script.py").write_text(UNJOINED)
    words = launch_words("forked", 2, program=[str(tmp_path / "script.py")])[:-1]
    said = output_of(words, tmp_path / "log", code=1, **folder_of_an_attempt(tmp_path / "run"))
    cause = (tmp_path / "run" / "logs" / "1" / "cause").read_text()
    assert cause.startswith("78 separate-processes: "), said
    assert "WORLD_SIZE=2" in cause


@pytest.mark.parametrize("case", ["not joined", "no data"])
def test_job_with_cause_file_ends_after_first_attempt(case, shards, tmp_path):
    flags, env = shards if case == "no data" else ([], {"PYTHON_EXEC": executable(tmp_path / "python", NO_GPU)})
    env |= {
        "SLIPWAY_RUN_DIR": str(tmp_path / "run"),
        "SLIPWAY_VENV": sys.prefix,
        "SLIPWAY_DEVICE": "cpu",
        "SLIPWAY_LOCAL_DISK": str(tmp_path),
        "SLIPWAY_CONFIG": str(DIGITS),
        "USE_CONTAINER": "0",
        "PYTHON": sys.executable,
    }
    words = ["env", f"--chdir={tmp_path}", "bash", str(ROOT / "jobscripts" / "ddp.sh"), *FLAGS, *flags]
    said = output_of(words, tmp_path / "log", code=78, **env)
    assert [path.name for path in (tmp_path / "run" / "logs").iterdir()] == ["1"], said

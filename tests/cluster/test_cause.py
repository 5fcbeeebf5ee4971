"""On a real Slurm: one rank alone is refused before training, and the job ends with its code, once."""

import sys
import time

import pytest

from support import DIGITS

SHARDS = """
import os
from pathlib import Path
from trainer.data.digits import digits

def data(config):
    rank = os.environ.get("RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    if rank == "3":
        Path(__file__).with_name("shard3").read_bytes()
    return digits(config)
"""
"""A data set of which the last rank lacks its part: it fails once the ranks have joined."""
NO_GPU = """#!/bin/sh
[ "$RANK" != 3 ] || set -- "$@" --device cuda
exec "$PYTHON" "$@"
"""
"""torchrun's Python: the last rank is to train on a GPU, of which there is none, and fails before it joins the others."""


@pytest.mark.parametrize(
    ("script", "case"),
    [
        ("ddp.job", "not joined"),
        ("ddp-ranks.job", "no data"),
        pytest.param("horovod.job", "no data", marks=pytest.mark.prove),
    ],
)
def test_the_first_cause_ends_the_job_for_good(cluster, tmp_path, table, script, case):
    (tmp_path / "shards.py").write_text(SHARDS)
    python = tmp_path / "python"
    python.write_text(NO_GPU)
    python.chmod(0o755)
    flags, env = ["--dataset", "shards:data"], {}
    if case == "not joined":
        flags, env = [], {"PYTHON_EXEC": str(python), "PYTHON": sys.executable}
    out, began = tmp_path / "run", time.monotonic()
    env |= {"SLIPWAY_CONFIG": str(DIGITS), "SLIPWAY_MAX_RESTARTS": "3"}
    job = cluster.submit(script, "--arch", "mlp", *flags, out=out, folder=tmp_path, **env)
    fields = job.wait()
    assert (out / "logs").is_dir(), job.output
    attempts, seconds = len([*(out / "logs").iterdir()]), time.monotonic() - began
    row = (fields["ExitCode"], f"attempts {attempts}", f"restarts {fields['Restarts']}", f"{seconds:.0f} s")
    table(f"the last rank alone, {case}, {script}", [row])
    assert (fields["ExitCode"], fields["Restarts"], attempts) == ("78:0", "0", 1), job.output

"""On a real Slurm: an error of one rank before training ends the job with its exit code at the first attempt."""

import sys
import time
from pathlib import Path

import pytest

from messages import slugs

PYTHON = """#!/bin/sh
case "${{RANK:-${{OMPI_COMM_WORLD_RANK:-}}}} $*" in "3 "*"-m trainer "*) set -- "$@" --device cuda ;; esac
exec {python} "$@"
"""
"""The ranks' Python: only the last rank is to train on a GPU, which does not exist, and does not join the others."""


@pytest.mark.parametrize(
    "script",
    ["ddp.job", "ddp-ranks.job", *(pytest.param(name, marks=pytest.mark.prove) for name in ("horovod.job", "ddp.pbs"))],
)
def test_configuration_error_of_one_rank_ends_job_without_restart(cluster, tmp_path, config, table, script):
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    for program in Path(sys.prefix, "bin").iterdir():
        if not program.name.startswith("python"):
            (programs / program.name).symlink_to(program)
    for name in ("python", "python3"):
        (programs / name).write_text(PYTHON.format(python=sys.executable))
        (programs / name).chmod(0o755)
    env = {"SLIPWAY_VENV": str(programs.parent), "PYTHON_EXEC": str(programs / "python")}
    out, began = tmp_path / "run", time.monotonic()
    job = cluster.submit(script, out=out, SLIPWAY_CONFIG=config(2), SLIPWAY_MAX_RESTARTS="3", **env)
    job.ends(ExitCode="78:0", Restarts="0")
    table(f"the last rank alone is refused: {script}", [[f"{time.monotonic() - began:.0f} s"]])
    assert [path.name for path in (out / "logs").iterdir()] == ["1"], job.output
    cause = (out / "logs" / "1" / "cause").read_text()
    assert cause.startswith("78 no-gpu: ")
    assert "--device cuda" in cause
    assert "no-gpu" in slugs(job.output)

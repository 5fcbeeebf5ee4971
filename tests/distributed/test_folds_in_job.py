"""A job whose script opens a session per fold, in separate folders: the verdicts that reach its job script."""

import json
import os
import signal
import sys

import pytest
import torch

from messages import slugs
from support import ROOT, output_of, started

SCRIPT = ROOT / "tests" / "scripts" / "session" / "folds.py"
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do
    shift
done
SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=1 exec "$@"
"""
SCONTROL = """#!/bin/bash
case $* in
    *hostnames*) echo node1 ;;
    requeue*) echo "$*" >>"${0%/*}/requeued" ;;
    *) echo "JobId=4711 JobState=RUNNING Requeue=1 Restarts=${SLURM_RESTART_COUNT:-0}" ;;
esac
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    output_of([sys.executable, str(SCRIPT), "whole"], folder / "log", RUN_DIR=str(folder))
    return folder


@pytest.fixture
def submitted(tmp_path):
    """Return a function that starts the job as Slurm does, first and after a requeue."""
    (tmp_path / "bin").mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    env = {
        "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
        "ENVIRONMENT": "BATCH",  # as sbatch sets it
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "node1",
        "SLURM_JOB_CPUS_PER_NODE": "1",
        "SLURM_SUBMIT_DIR": str(ROOT),
        "MASTER_ADDR": "127.0.0.1",
        "USE_CONTAINER": "0",
        "SLIPWAY_VENV": sys.prefix,
        "SLIPWAY_DEVICE": "cpu",
        "SLIPWAY_RANKS_PER_NODE": "1",
        "SLIPWAY_SCRIPT": str(SCRIPT),
        "SLIPWAY_RUN_DIR": str(tmp_path / "run"),
        "SLIPWAY_LOCAL_DISK": str(tmp_path),
    }
    return lambda mode, **more: started(["bash", "jobscripts/ddp.job", mode], tmp_path / "log", **env, **more)


def assert_same_weights(run, whole):
    for fold in ("fold0", "fold1"):
        states = [torch.load(folder / f"{fold}.pt") for folder in (run, whole)]
        assert [name for name in states[1] if not torch.equal(states[0][name], states[1][name])] == [], fold
        assert json.loads((run / fold / "status.json").read_text())["state"] == "done"


# once: the fold did not see the time limit, and a stop of it ended the job as done
def test_time_limit_within_fold_requeues_job(tmp_path, submitted, whole):
    run = tmp_path / "run"
    with submitted("stopped") as job:
        job.until((run / "in-fold1").exists, "the second fold")
        os.kill(job.process.pid, signal.SIGUSR1)
        assert job.wait() == 75, job.output
    assert "requeued" in slugs(job.output), job.output
    assert (tmp_path / "bin" / "requeued").read_text() == "requeue 4711\n"
    assert (run / "verdict.1").read_text().startswith("out-of-time "), job.output
    assert not (run / "fold1.pt").exists()
    with submitted("stopped", SLURM_RESTART_COUNT="1") as job:
        assert job.wait() == 0, job.output
    assert not (run / "STOP").exists()
    assert_same_weights(run, whole)


# once: such a job ended with the exit code, as no session seemed to have begun
def test_job_restarts_after_fold_is_killed(tmp_path, submitted, whole):
    with submitted("killed") as job:
        assert job.wait() == 0, job.output
    assert "restarted" in slugs(job.output), job.output
    assert_same_weights(tmp_path / "run", whole)

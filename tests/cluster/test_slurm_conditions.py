"""sbatch options and other conditions of users and sites, on a real Slurm."""

import sys
import threading

import pytest

from clusters import FIXED, LIBRARY, OF_A_JOB, until
from messages import assert_warning, slugs
from support import ROOT

pytestmark = pytest.mark.prove


@pytest.mark.parametrize(
    ("sbatch", "without"),
    [
        (("--hint=nomultithread",), ()),
        (("--gpus=4",), ()),
        (("--gpus=4",), ("--gpus-per-node",)),
        (("--gpus-per-task=2",), ("--gpus-per-node",)),
        (("--gres=gpu:2",), ("--gpus-per-node",)),
    ],
    ids=lambda words: " ".join(words) if words else "header",
)
def test_every_job_step_starts_with_sbatch_command_line_options(  # noqa: PLR0917 -- fixtures
    cluster, tmp_path, config, alone, table, sbatch, without
):
    """Job steps of ranks, of one node, and without a GPU. ``without`` are omitted lines."""
    script = tmp_path / "ddp.job"
    lines = (ROOT / "jobscripts" / "ddp.job").read_text().splitlines(keepends=True)
    script.write_text("".join(line for line in lines if not any(f"#SBATCH {option}" in line for option in without)))
    settings = {"SLIPWAY_LIB": str(LIBRARY), "SLIPWAY_CONFIG": config(2)}
    job = cluster.submit(str(script), out=tmp_path / "run", sbatch=sbatch, **settings)
    fields, distance = job.proven(tmp_path / "run", alone, ranks=4)
    assert cluster.local_folders(job) == []
    table(f"sbatch {' '.join(sbatch)}", [[*sbatch, fields["JobState"], fields["RunTime"], f"{distance:.1e}"]])


def test_jobs_submitted_by_array_tasks_have_separate_run_folders(cluster, tmp_path, config):
    """The folders are named after the jobs, and each job is requeued at its time limit."""
    submit = f"sbatch --parsable --output={tmp_path}/%j.log {ROOT}/jobscripts/ddp.job"
    words = ["env", f"--chdir={tmp_path}", "sbatch", "--parsable", "--array=7-8", "--ntasks=1", "--output=/dev/null"]
    env = FIXED | {"SLIPWAY_VENV": sys.prefix, "SLIPWAY_CONFIG": config(40), "SLIPWAY_OUTPUT": str(tmp_path / "runs")}
    parent = cluster.run(*words, f"--wrap={submit} >>{tmp_path}/numbers", **env).strip()
    submitted = tmp_path / "numbers"
    assert until(lambda: submitted.exists() and len(submitted.read_text().split()) == 2, limit=60) is not None
    jobs = [cluster.job(number, tmp_path / f"{number}.log") for number in submitted.read_text().split()]
    jobs[0].until("epoch 2/40")
    cluster.run("scancel", "--batch", "--signal=USR1", jobs[0].number)
    for job, restarts in zip(jobs, ("1", "0"), strict=True):
        job.ends(JobState="COMPLETED", Restarts=restarts)
    folders = sorted(path.parent.name for path in (tmp_path / "runs").glob("*/run.json"))
    assert len(folders) == 2
    assert all(job.number in folder for job, folder in zip(jobs, folders, strict=True))
    assert not any(parent in folder for folder in folders)


DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


def test_next_attempt_removes_scratch_left_by_ranks_ignoring_sigterm(cluster, tmp_path):
    """SIGKILL also ended the process that would have removed the job's folders."""
    script = tmp_path / "deaf.py"
    script.write_text(DEAF)
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", out=out, SLIPWAY_SCRIPT=str(script))
    job.until("deaf", times=4)
    cluster.run("scancel", job.number)
    job.ends(JobState="CANCELLED", Restarts="0")
    assert cluster.left_over(f"{OF_A_JOB}|deaf.py", limit=40) == []
    assert len(cluster.local_folders(job)) == 2
    again = cluster.resubmit(out, folder=tmp_path)
    again.until("deaf", times=4)
    assert cluster.local_folders(job) == [], again.output
    cluster.run("scancel", "--full", "--signal=KILL", again.number)


def test_slow_slurm_controller_is_not_reported_as_lost_node(cluster, tmp_path, config):
    """A rank dies while it is silent: the job reports no lost node and restarts the ranks."""
    job = cluster.submit("ddp.job", out=tmp_path / "run", SLIPWAY_CONFIG=config(40), SLIPWAY_MAX_RESTARTS="3")
    job.until("epoch 2/40")
    cluster.control("on", "head", "pkill", "-STOP", "--exact", "slurmctld")
    waker = threading.Timer(25, cluster.control, ["on", "head", "pkill", "-CONT", "--exact", "slurmctld"])
    waker.start()
    try:
        cluster.control("on", "node2", "pkill", "-KILL", "--oldest", "--exact", "python")
    finally:
        waker.join()
    job.ends(JobState="COMPLETED", Restarts="0")
    assert_warning(job.output, "restarted", "restart 1 ")
    assert not {"node-lost", "node-suspect"} & {*slugs(job.output)}

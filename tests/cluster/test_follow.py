"""`jobgen status`, `logs` and `cancel` on a real Slurm without accounting."""

import re
import subprocess

from clusters import CLUSTER, JOBGEN
from messages import assert_error
from support import ROOT, status

SMALL = ["--arch", "mlp", "--no-figures"]


def test_logs_follow_reports_job_from_queue_to_end(cluster, tmp_path, table):
    held = cluster.submit("ddp.job", *SMALL, "--epochs", "6", out=tmp_path / "run", sbatch=("--hold",))
    waiting = cluster.jobgen("status", held.number)
    assert re.match(rf"job {held.number}: PENDING\b.* JobHeldUser\b", waiting)
    words = [CLUSTER, "run", *JOBGEN, "logs", "--follow", held.number]
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, cwd=ROOT, env=cluster.env, text=True, **pipes) as follower:
        assert re.match(rf"jobgen: job {held.number}\b.* PENDING\b.* JobHeldUser\n", follower.stderr.readline())
        cluster.run("scontrol", "release", held.number)
        held.until("epoch 2/6")
        running = cluster.jobgen("status", tmp_path / "run")
        out, _ = follower.communicate(timeout=120)
    assert "epoch 6/6" in out
    assert "validation accuracy" in out
    assert out == held.output
    ended = cluster.jobgen("status", tmp_path / "run")
    assert f"job {held.number}: RUNNING on node[1-2] for " in running
    assert "attempt 1 running, step " in running
    assert f"job {held.number}: COMPLETED after " in ended
    shown = (waiting + running + ended).replace(str(tmp_path), "").replace(str(ROOT), "")
    table("jobgen status: waiting, running, ended", [[line] for line in shown.splitlines()])


def test_cancelled_job_saves_checkpoint(cluster, tmp_path):
    job = cluster.submit("ddp.job", *SMALL, "--epochs", "400", out=tmp_path / "run")
    job.until("epoch 2/400")
    cluster.jobgen("cancel", job.number)
    job.ends(JobState="CANCELLED")
    assert "epoch 2/400" in cluster.jobgen("logs", "--follow", job.number)
    said = status(tmp_path / "run")
    assert (said["state"], said["reason"]) == ("stopped", "signal")


def test_status_of_unknown_job_gives_one_line_error(cluster):
    said = cluster.run("bash", "-c", '"$@" 2>&1 || echo "exit code $?"', "bash", *JOBGEN, "status", "999999")
    line, code = said.splitlines()
    assert code == "exit code 78"
    assert_error(line, "no-such-job", "slurm", "999999", "runs/")

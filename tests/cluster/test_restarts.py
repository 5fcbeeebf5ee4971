"""Restarts within a job on a real Slurm, after ranks, launchers or nodes die."""

import pytest

from clusters import rendered, until
from messages import assert_warning
from support import digest

LEFT = r"trainer|guard\.sh|torchrun"


@pytest.fixture
def submit(cluster_with_spare, tmp_path, config):
    """Return a function that submits a two-node job with ``sets`` and returns the job and its run folder."""

    def submit(*sets, name="run"):
        script, out = rendered(tmp_path, "ddp", "example", *sets), tmp_path / name
        settings = {"SLIPWAY_CONFIG": config(120), "SLIPWAY_MAX_RESTARTS": "5"}
        return cluster_with_spare.submit(script, out=out, **settings), out

    return submit


def kill(cluster, node, *pattern):
    """Kill the oldest matching process on ``node``."""
    cluster.control("on", node, "pkill", "-KILL", "--oldest", *pattern)


def test_job_with_killed_rank_launcher_and_node_matches_undisturbed_run(cluster_with_spare, submit):
    cluster = cluster_with_spare
    job, out = submit("spares=1")
    job.until("epoch 4/")
    kill(cluster, "node2", "--exact", "python")
    job.until("resumed at step")
    assert_warning(job.output, "rank-killed", "attempt 1", "node2", "/logs/1/stderr.log")
    assert_warning(job.output, "restarted", "restart 1 ", " 5:", "attempt 2 ", "node1, node3")
    job.until("validation loss", times=job.output.count("validation loss") + 2)
    kill(cluster, "node1", "--full", "^srun --nodes=2")
    job.until("resumed at step", times=2)
    job.until("validation loss", times=job.output.count("validation loss") + 2)
    cluster.control("kill", "node3")
    job.until("resumed at step", times=3)
    job.ends(JobState="COMPLETED", Restarts="0")
    cluster.control("boot", "node3")
    assert_warning(job.output, "node-lost", "node3")
    assert cluster.processes(LEFT) == []
    again, whole = submit("spares=1", name="whole")
    again.ends()
    assert digest(out / "checkpoints" / "latest") == digest(whole / "checkpoints" / "latest")


def test_stray_sigterm_at_start_of_requeued_job_requeues_it_again(cluster_with_spare, submit):
    """Slurm's SIGTERM for a job that has lost a node can reach the same job after its requeue."""
    job, out = submit()
    job.until("epoch 4/")
    cluster_with_spare.run("scontrol", "requeue", job.number)
    job.until("attempt 2 in ")
    cluster_with_spare.run("scancel", "--signal=TERM", "--batch", job.number)
    job.ends(JobState="COMPLETED", Restarts="2")
    assert_warning(job.output, "requeued", " 1 of ")
    assert (out / "requeues").read_text().split() == ["1", job.number]


def test_restart_keeps_user_job_step_and_scratch_folders(cluster, tmp_path, config):
    def step_of_the_user():
        return cluster.processes("/sleep 290$", nodes=["node2"])  # srun makes it a path

    job = cluster.submit("ddp.job", out=tmp_path / "run", SLIPWAY_CONFIG=config(4000), SLIPWAY_MAX_RESTARTS="3")
    job.until("epoch 2/")
    step = f"srun --jobid={job.number} --overlap --nodes=1 --ntasks=1 --nodelist=node2 sleep 290"
    cluster.run("sh", "-c", f"setsid {step} </dev/null >/dev/null 2>&1 &")
    assert until(step_of_the_user, limit=20) is not None
    before = cluster.local_folders(job)
    assert [folder.parent.name for folder in before] == ["tmp.node1", "tmp.node2"]
    kill(cluster, job.fields["BatchHost"], "--full", "^srun --nodes=2")  # the tasks of its job step survive
    job.until("resumed at step")
    assert step_of_the_user(), job.output
    assert cluster.local_folders(job) == before, job.output
    cluster.run("scancel", job.number)
    job.ends(JobState="CANCELLED", Restarts="0")
    assert until(lambda: not cluster.local_folders(job), limit=40) is not None, job.output
    assert "scratch-left" not in job.output
    assert cluster.processes(LEFT) == []

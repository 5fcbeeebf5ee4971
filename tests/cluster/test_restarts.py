"""Restarts inside a job of a real Slurm, after the deaths of ranks, launchers and nodes."""

import time

import pytest

from clusters import CONFIG, rendered
from messages import assert_names, assert_warning
from recovery import until
from support import weights

EPOCHS = 120


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(CONFIG.format(epochs=EPOCHS))
    return {"SLIPWAY_CONFIG": str(path), "SLIPWAY_MAX_RESTARTS": "5"}


@pytest.fixture
def submit(cluster_with_spare, tmp_path, settings):
    """Return a function that submits a job of two nodes and what ``sets`` add, and returns it and its run folder."""

    def submit(*sets, name="run", **env):
        script = rendered(tmp_path, "ddp", "example", *sets)
        out = tmp_path / name
        return cluster_with_spare.submit(str(script), out=out, **settings, **env), out

    return submit


def kill(cluster, node, *pattern):
    """Kill the oldest process on ``node`` that matches."""
    cluster.control("on", node, "pkill", "-KILL", "--oldest", *pattern)


def processes(cluster, node):
    """Return what a job has left on ``node``."""
    return [
        line
        for line in cluster.control("on", node, "ps", "-eo", "args").splitlines()
        if "trainer" in line or "guard.sh" in line or "torchrun" in line
    ]


def test_a_rank_a_launcher_and_a_node_die_and_nothing_is_lost(cluster_with_spare, submit):
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
    fields = job.wait()
    cluster.control("boot", "node3")
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "0"), job.output
    assert_warning(job.output, "node-lost", "node3")
    assert [processes(cluster, node) for node in ("node1", "node2")] == [[], []]
    again, whole = submit("spares=1", name="whole")
    assert again.wait()["JobState"] == "COMPLETED", again.output
    one, other = weights(out / "checkpoints" / "latest"), weights(whole / "checkpoints" / "latest")
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.prove
def test_it_goes_on_with_fewer_nodes(cluster_with_spare, submit):
    job, _ = submit("shrink=true")
    job.until("epoch 4/")
    node = "node1" if job.fields["BatchHost"] != "node1" else "node2"
    cluster_with_spare.control("kill", node)
    fields = job.wait()
    cluster_with_spare.control("boot", node)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "0"), job.output
    assert_warning(job.output, "fewer-nodes", " 1 node ", " 2:")
    assert "2 rank(s), 2 on each of 1 node(s)" in job.output


@pytest.mark.prove
def test_the_death_of_the_first_node_leaves_no_empty_job(cluster_with_spare, submit):
    cluster = cluster_with_spare
    job, out = submit("spares=1")
    job.until("epoch 4/")
    cluster.control("kill", "node1")
    began = time.monotonic()
    while job.state == "RUNNING":
        assert time.monotonic() < began + 150, "the job is empty"
        time.sleep(1)
    cluster.control("boot", "node1")
    fields = job.wait(limit=400)
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), job.output
    (said,) = [line for line in job.output.splitlines() if "warning[node-lost]: guard.sh on " in line]
    assert_names(said, " node1 ", "scontrol requeue")
    assert (out / "requeues").read_text().split() == ["1", job.number]


def test_a_stray_signal_at_the_start_of_a_requeued_job_sends_it_back(cluster_with_spare, submit):
    """Slurm's SIGTERM for a job that has lost a node can reach the same job as it starts again."""
    job, out = submit()
    job.until("epoch 4/")
    cluster_with_spare.run("scontrol", "requeue", job.number)
    job.until("attempt 2 in ")
    cluster_with_spare.run("scancel", "--signal=TERM", "--batch", job.number)
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "2"), job.output
    assert_warning(job.output, "requeued", " 1 of ")
    assert (out / "requeues").read_text().split() == ["1", job.number]


def test_a_restart_leaves_a_users_step_and_the_folders_and_scancel_removes_these(cluster, tmp_path, config):
    def folders():
        return {
            node: [path.name for path in (cluster.folder / f"tmp.{node}").glob(f"slipway-{job.number}.*")]
            for node in ("node1", "node2")
        }

    def step_of_the_user():
        lines = cluster.control("on", "node2", "ps", "-eo", "args").splitlines()
        return any(line.endswith("/sleep 290") for line in lines)  # srun makes it a path

    job = cluster.submit("ddp.job", out=tmp_path / "run", SLIPWAY_CONFIG=config(4000), SLIPWAY_MAX_RESTARTS="3")
    job.until("epoch 2/")
    step = f"srun --jobid={job.number} --overlap --nodes=1 --ntasks=1 --nodelist=node2 sleep 290"
    cluster.run("sh", "-c", f"setsid {step} </dev/null >/dev/null 2>&1 &")
    assert until(step_of_the_user, limit=20) is not None
    before = folders()
    assert [len(names) for names in before.values()] == [1, 1]
    kill(cluster, job.fields["BatchHost"], "--full", "^srun --nodes=2")  # the tasks of its step live on
    job.until("resumed at step")
    assert (step_of_the_user(), folders()) == (True, before), job.output
    cluster.run("scancel", job.number)
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED", "0"), job.output
    assert until(lambda: not any(folders().values()), limit=40) is not None, f"{folders()}\n{job.output}"
    assert "scratch-left" not in job.output
    assert [processes(cluster, node) for node in ("node1", "node2")] == [[], []]

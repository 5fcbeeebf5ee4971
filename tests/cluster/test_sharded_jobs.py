"""Jobs that train a sharded model: requeued at the time limit, resumed on fewer nodes, and after the loss of a node."""

import re

import pytest

from clusters import rendered
from messages import assert_warning
from session_runs import SCRIPTS, content, epochs_of, lines, saved_step

pytestmark = pytest.mark.prove
SCRIPT = {"SLIPWAY_SCRIPT": str(SCRIPTS / "sharded.py")}
AT_LIMIT = ("--time=2", "--signal=B:USR1@30")
"""Slurm checks every 30 s, so the signal comes 60 to 90 s after the start."""
ONE_NODE = ("--nodes=1",)


@pytest.mark.parametrize("way", ["venv", "container"])
def test_run_requeued_at_time_limit_continues_on_fewer_nodes(request, cluster, tmp_path, table, way):
    out = tmp_path / "run"
    inside = request.getfixturevalue("image") if way == "container" else {}
    job = cluster.submit("ddp.job", "--kind", "hsdp", "--epochs", "100", out=out, sbatch=AT_LIMIT, **SCRIPT, **inside)
    job.until("resumed at step", limit=300)
    cluster.run("scancel", job.number)
    job.ends(limit=120, JobState="CANCELLED")
    saved = saved_step(out)
    again = cluster.resubmit(out, folder=tmp_path, sbatch=ONE_NODE, **inside)
    again.ends(limit=600, JobState="COMPLETED", NumNodes="1")
    states = lines(out, "states")
    after = {step: digest for what, step, digest in states if what == "stepped"}
    opened = [(step, digest) for what, step, digest in states if what == "opened"]
    assert len(opened) >= 3
    assert saved in [step for step, _ in opened]
    assert [after[step] for step, _ in opened[1:]] == [digest for _, digest in opened[1:]]
    for numbers in epochs_of(lines(out, "samples")):
        assert sorted(numbers) == [*range(97)]
    said = [
        line for line in (job.output + again.output).splitlines() if re.search("out of time|resumed at|trained", line)
    ]
    table(f"FSDP with replicas, {way}: time limit, then one node of two", [[line] for line in said])


def test_run_that_loses_node_and_rank_ends_as_undisturbed_one(cluster_with_spare, tmp_path):
    cluster = cluster_with_spare
    script = rendered(tmp_path, "ddp", "example", "spares=1")
    flags = ["--kind", "fsdp", "--epochs", "60"]
    job = cluster.submit(script, *flags, out=tmp_path / "run", **SCRIPT)
    job.until("step 50 ")
    cluster.control("on", "node2", "pkill", "-KILL", "--oldest", "--exact", "python")
    job.until("resumed at step")
    assert_warning(job.output, "restarted", "node1, node3")
    job.until("step ", times=job.output.count("step ") + 2)
    cluster.control("kill", "node3")
    job.until("resumed at step", times=2, limit=200)
    job.ends(limit=300, JobState="COMPLETED", Restarts="0")
    cluster.control("boot", "node3")
    assert_warning(job.output, "node-lost", "node3")
    cluster.submit(script, *flags, out=tmp_path / "whole", **SCRIPT).ends(limit=300)
    assert content(tmp_path / "run") == content(tmp_path / "whole")

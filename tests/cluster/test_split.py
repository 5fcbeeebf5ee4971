"""Ranks of two GPUs on two four-GPU nodes, and nodes started one by one: their GPUs and exit codes."""

import json
from pathlib import Path

import pytest

from clusters import rendered
from messages import assert_error, assert_warning
from support import status

DEVICES = str(Path(__file__).parent / "foreign" / "devices.py")
"""A program whose ranks print which GPUs they take."""
ALL = ["0", "1", "2", "3"]
FOUR = ("--gpus-per-node=4", "--cpus-per-task=16")
NODE_BY_NODE = "placement=node-by-node"
PLACES = [
    pytest.param("example", [], False, id="slurm"),
    pytest.param("gpu-per-task", ["placement=per-rank", "cpus_per_gpu=4"], True, id="bound"),
    pytest.param("pbs", ["gpus_per_node=4"], False, id="pbs"),
    pytest.param("pbs", ["gpus_per_node=4", "launcher=ssh"], False, id="pbs-ssh", marks=pytest.mark.prove),
    pytest.param("example", ["gpus_per_node=4", NODE_BY_NODE], False, id="node-by-node"),
    pytest.param(
        "gpu-per-task", [NODE_BY_NODE, "cpus_per_gpu=4"], False, id="node-by-node-bound", marks=pytest.mark.prove
    ),
]


def taken(output):
    """Return each rank's output, in rank order."""
    rows = [json.loads(line.partition("DEVICES ")[2]) for line in output.splitlines() if "DEVICES " in line]
    return sorted(rows, key=lambda row: row["rank"])


@pytest.mark.parametrize("way", ["venv", pytest.param("container", marks=pytest.mark.prove)])
@pytest.mark.parametrize(("site", "settings", "bound"), PLACES)
def test_each_rank_takes_separate_gpus(request, cluster_of_four, tmp_path, table, site, settings, bound, way):  # noqa: PLR0917 -- fixtures
    inside = request.getfixturevalue("image") if way == "container" else {}
    script = rendered(tmp_path, "split", site, *settings) if settings else "split.job"
    gpus = {"CUDA_VISIBLE_DEVICES": ",".join(ALL)} if site == "pbs" else {}  # the PBS emulation does not set it
    job = cluster_of_four.submit(
        str(script),
        out=tmp_path / "run",
        sbatch=() if settings else FOUR,
        SLIPWAY_SCRIPT=DEVICES,
        SLIPWAY_DEVICE="auto",
        **gpus,
        **inside,
    )
    job.ends(limit=120)
    rows = taken(job.output)
    assert [(row["rank"], row["local_rank"], row["node"]) for row in rows] == [
        (0, 0, "node1"),
        (1, 1, "node1"),
        (2, 0, "node2"),
        (3, 1, "node2"),
    ], job.output
    assert [row["takes"] for row in rows] == [ALL[:2], ALL[2:]] * 2
    assert [row["visible"] for row in rows] == ([ALL[:2], ALL[2:]] * 2 if bound else [ALL] * 4)
    if NODE_BY_NODE in settings:
        assert [row["node_rank"] for row in rows] == ["0", "0", "1", "1"]
    table(f"split: {site} {' '.join(settings)}, {way}", [[row["node"], row["rank"], *row["takes"]] for row in rows])


@pytest.mark.parametrize("bound", [False, True])
def test_idle_gpus_are_reported(cluster_of_four, tmp_path, bound):
    settings = ["placement=per-rank", f"bind_gpus={str(bound).lower()}"]
    job = cluster_of_four.submit(
        rendered(tmp_path, "split", "example", *settings),
        out=tmp_path / "run",
        sbatch=("--gpus-per-node=3",),
        SLIPWAY_SCRIPT=DEVICES,
        SLIPWAY_DEVICE="auto",
    )
    job.ends(limit=120)
    assert_warning(job.output, "idle-gpus", "1 of 3 ")
    assert [row["takes"] for row in taken(job.output)] == [ALL[:2]] * 2


def test_too_few_gpus_are_refused_before_ranks_start(cluster_of_four, tmp_path):
    job = cluster_of_four.submit(
        "split.job", out=tmp_path / "run", sbatch=("--gpus-per-node=1",), SLIPWAY_DEVICE="auto"
    )
    job.ends(limit=60, ExitCode="78:0")
    assert_error(job.output, "too-few-gpus", "1 rank(s) ", " 2 GPUs ", " 1:", "SLIPWAY_DEVICES_PER_RANK")


@pytest.mark.parametrize("way", ["venv", pytest.param("container", marks=pytest.mark.prove)])
@pytest.mark.parametrize(
    "settings",
    [[], pytest.param(["gpus_per_node=4", NODE_BY_NODE], marks=pytest.mark.prove)],
    ids=["split.job", "node-by-node"],
)
def test_two_replicas_of_two_stages_train_on_each_node(request, cluster_of_four, tmp_path, settings, way):
    inside = request.getfixturevalue("image") if way == "container" else {}
    script = rendered(tmp_path, "split", "example", *settings) if settings else "split.job"
    job = cluster_of_four.submit(script, out=tmp_path / "run", sbatch=() if settings else FOUR, **inside)
    job.ends(limit=200)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (run["world_size"], run["launch"]["devices_per_rank"]) == (4, 2)
    assert run["launch"]["stages"] == [["node1", "cpu", "cpu"]] * 2 + [["node2", "cpu", "cpu"]] * 2
    assert 'split = "conv2"' in (tmp_path / "run" / "config.toml").read_text()
    assert status(tmp_path / "run")["state"] == "done"


FAILS = """
import os, signal, sys, time
if os.environ["NODE_RANK"] == "1":
    sys.exit(7)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(600)
"""


@pytest.mark.parametrize("settings", [[], ["launcher=ssh"]], ids=["srun", "ssh"])
def test_failed_node_ends_other_nodes_in_node_by_node_placement(cluster, tmp_path, settings):
    (tmp_path / "fails.py").write_text(FAILS)
    script = rendered(tmp_path, "ddp", "example", NODE_BY_NODE, *settings)
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_SCRIPT=str(tmp_path / "fails.py"))
    job.ends(limit=100, ExitCode="1:0")  # torchrun's exit code for any failure
    assert cluster.left_over("fails.py", limit=30) == []


@pytest.mark.prove  # takes a minute; test_jobs.py tests the same with srun
def test_node_by_node_job_resumes_after_time_limit(cluster, tmp_path, config):
    script = rendered(tmp_path, "ddp", "example", NODE_BY_NODE)
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_CONFIG=config(40))
    job.until("epoch 2/40")
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    job.ends(JobState="COMPLETED", Restarts="1")
    assert "resumed at step" in job.output

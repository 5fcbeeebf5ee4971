"""The same kills under the job script and under launchers that restart ranks themselves.

Those are `torchrun --max-restarts` and `ft_launcher` of NVIDIA's nvidia-resiliency-ext, as their documentation has it:
an agent on each node of a job with --no-kill, a rendezvous on the first node, and for ft_launcher one node more than
train. torchrun knows no spare nodes: where one more joins, it loses its way already after the death of a rank ("wait
timeout after 60000ms, keys: .../assigned_ranks/2", torch 2.13). Its agents count restarts each for itself, and ranks
look for each other by that count: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 is the remedy of pytorch's issue 135712.

PEERS_REPORT: a file that gets a line for each kill; its table, by hand:

    PYTHONPATH=tests:tests/cluster:src python tests/cluster/test_peer_launchers.py FILE
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clusters import FIXED, Cluster, Job, rendered, started, until
from recovery import repair, strike, trains
from support import digest

pytestmark = pytest.mark.prove
PROGRAM = str(Path(__file__).parent / "foreign" / "slow_steps.py")
TRAIN = 4
NODES = [f"node{number}" for number in range(1, TRAIN + 2)]
VERSIONS = ("nvidia-resiliency-ext==0.4.1", "nvidia-ml-py", "defusedxml", "pyyaml")
LAUNCHERS = ("slipway", "torchrun --max-restarts", "ft_launcher")
KILLED = ("rank", "launcher", "slurmd", "node", "network", "batch host")
TIMES = 2
PEER = """#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node=1 --cpus-per-task=8 --no-kill --time=20
export RUN_DIR={out} TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
srun --no-kill --kill-on-bad-exit=0 --wait=0 --cpus-per-task=8 {launcher} --nnodes={train} --nproc-per-node=1 \
    --max-restarts=5 --rdzv-id="$SLURM_JOB_ID" --rdzv-backend=c10d --rdzv-endpoint="$SLURMD_NODENAME:29400" {program}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    yield from started(tmp_path_factory.getbasetemp(), nodes=len(NODES))


@pytest.fixture(scope="module")
def resiliency(tmp_path_factory):
    """Return a folder with nvidia-resiliency-ext for PYTHONPATH; torch comes from the environment."""
    folder = tmp_path_factory.mktemp("resiliency")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *VERSIONS]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nvidia-resiliency-ext cannot be installed: {done.stderr[-300:]}")
    return folder


@pytest.fixture(scope="module")
def submit(cluster, tmp_path_factory, resiliency):
    """Return a function that submits a job with a launcher and returns it and its run folder."""
    folder = tmp_path_factory.mktemp("peers")
    script = rendered(folder, "ddp", "example", f"nodes={TRAIN}", "spares=1")
    commands = {
        "torchrun --max-restarts": f"{sys.prefix}/bin/torchrun",
        "ft_launcher": f"{sys.executable} {resiliency}/bin/ft_launcher",
    }

    def submit(launcher, name):
        out = folder / name
        if launcher == "slipway":
            env = {"SLIPWAY_SCRIPT": PROGRAM, "SLIPWAY_RANKS_PER_NODE": "1", "SLIPWAY_MAX_RESTARTS": "5"}
            return cluster.submit(str(script), out=out, **env), out
        peer = folder / f"{name}.job"
        nodes = len(NODES) if launcher == "ft_launcher" else TRAIN
        words = {"launcher": commands[launcher], "out": out, "program": PROGRAM}
        peer.write_text(PEER.format(nodes=nodes, train=TRAIN, **words))
        path = f"{sys.prefix}/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        env = {**FIXED, "PYTHONPATH": str(resiliency), "PATH": path}
        log = folder / f"{name}.log"
        return cluster.job(cluster.run("sbatch", "--parsable", f"--output={log}", str(peer), **env).strip(), log), out

    return submit


@pytest.fixture(scope="module")
def whole(submit):
    """Return the digest of an undisturbed run."""
    job, out = submit("slipway", "whole")
    job.ends()
    return digest(out / "checkpoints" / "latest")


PATTERNS = {
    "rank": ("--newest", "--full", "[p]ython.* .*slow_steps"),
    "launcher": ("--oldest", "--full", "([f]t_launcher|[t]orchrun) .*slow_steps"),
}


def choose_node(cluster: Cluster, job: Job, what: str) -> str:
    """Return the target node: the job's first, or another one with a rank."""
    host = job.fields["BatchHost"]
    if what == "batch host":
        return host
    rank = "^(?!.*rdzv).*slow_steps"
    return next(node for node in NODES if node != host and cluster.processes(rank, nodes=[node]))


@pytest.mark.parametrize("time_", range(TIMES))
@pytest.mark.parametrize("what", KILLED)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_slipway_job_completes_after_kill_during_training(cluster, submit, whole, launcher, what, time_):  # noqa: PLR0917 -- fixtures
    job, out = submit(launcher, f"{launcher.partition(' ')[0]}-{what.replace(' ', '-')}-{time_}")
    assert until((out / "checkpoints" / "latest").is_symlink, limit=120) is not None, job.output
    time.sleep(1 + time_)
    row = {"launcher": launcher, "what": what, "node": "", "again": None, "end": "hangs", "equal": False, "left": []}
    try:
        began = time.monotonic()
        row["node"] = node = choose_node(cluster, job, what)
        strike(cluster, what, node, *PATTERNS.get(what, ()))
        until(lambda: trains(out, 2) or job.state in job.ended or job.fields["Restarts"] != "0", limit=260)
        if job.fields["Restarts"] != "0":
            repair(cluster, what, node)  # like an administrator: a requeued job needs all nodes
        if until(lambda: trains(out, 2) or job.state in job.ended, limit=100) is not None and trains(out, 2):
            row["again"] = time.monotonic() - began
        if until(lambda: job.state in job.ended, limit=200) is not None:
            row["end"] = job.state
            row["equal"] = (out / "checkpoints").exists() and digest(out / "checkpoints" / "latest") == whole
            gone = node if what in {"node", "batch host"} else None
            if what == "network":
                cluster.control("reconnect", node)
            row["left"] = cluster.left_over(nodes=[name for name in NODES if name != gone])
    finally:
        if report := os.environ.get("PEERS_REPORT"):
            with Path(report).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        cluster.cancel_jobs()
        if row["node"]:
            repair(cluster, what, row["node"])
        until(lambda: cluster.run("sinfo", "--noheader", "--states=idle", "--format=%D").strip() == "5", limit=60)
    if launcher == "slipway":
        assert (row["end"], row["equal"], row["left"]) == ("COMPLETED", True, []), job.output


def table(rows: list[dict]) -> str:
    """Return a Markdown table of the runs that ended with an undisturbed run's weights, by launcher and kill."""
    lines = ["| killed | " + " | ".join(f"`{name}`" for name in LAUNCHERS) + " |", "|---|" + "---|" * len(LAUNCHERS)]
    for what in KILLED:
        cells = [what]
        for launcher in LAUNCHERS:
            some = [row for row in rows if (row["launcher"], row["what"]) == (launcher, what)]
            equal = [row for row in some if row["equal"]]
            words = [f"{len(equal)} of {len(some)}"]
            if seconds := [row["again"] for row in equal if row["again"] is not None]:
                words.append(f"{statistics.median(seconds):.0f} s")
            elif equal:
                words.append("went on")
            words += sorted({row["end"].lower() for row in some if row["end"] != "COMPLETED"})
            words += ["left processes"] * any(row["left"] for row in some)
            cells.append(", ".join(words))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]))

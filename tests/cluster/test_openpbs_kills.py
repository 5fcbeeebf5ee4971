"""Twenty kills on a real OpenPBS of two nodes and a spare one: a rank, mpirun, a MOM, a node.

KILLS_REPORT: a file that gets a line for each kill.
"""

import os
import random
import shutil
import time
from pathlib import Path

import pytest

import kills
import recovery
from clusters import LIBRARY, OpenPbs, rendered, started, until
from recovery import RANK, Kill, Outcome, append, trains
from support import digest

pytestmark = pytest.mark.prove
PATTERNS = {"rank": RANK, "mpirun": ("--exact", "prterun|mpirun")}
NODES = ("node1", "node2", "node3")
EPOCHS = 16
DRAW = random.Random(19)
KILLS = [
    # mpirun runs on the job's first node; every second one of the other kills is there too
    Kill(what, "training", 0 if what == "mpirun" or number % 2 == 1 else 1, DRAW.random())
    for what in ("rank", "mpirun", "mom", "node")
    for number in range(5)
]


@pytest.fixture(scope="module")
def pbs(tmp_path_factory, openpbs_prefix):
    for cluster in started(tmp_path_factory.getbasetemp(), nodes=len(NODES)):
        yield OpenPbs(cluster, openpbs_prefix, nodes=len(NODES))


@pytest.fixture(scope="module")
def submit(pbs):
    """Return a function that submits a job and returns it and its run folder."""
    folder = pbs.cluster.folder / "root" / "kills"
    folder.mkdir(parents=True)
    config = kills.config(folder, EPOCHS)
    script = rendered(folder, "ddp", "pbs", "nodes=2", "spares=1")

    def submit(name):
        base = folder / name
        base.mkdir()
        shutil.copy(kills.SLOW_DATA, base)
        env = {"SLIPWAY_LIB": str(LIBRARY), "SLIPWAY_CONFIG": str(config)}
        return pbs.submit(script, out=base / "run", user="root", **env), base / "run"

    return submit


@pytest.fixture(scope="module")
def whole(submit):
    """Return the digest of an undisturbed run."""
    job, out = submit("whole")
    job.ends()
    return digest(out / "checkpoints" / "latest")


def repair(pbs, what, node):
    recovery.repair(pbs.cluster, what, node)
    pbs.control("boot", pbs.prefix, node)


@pytest.mark.parametrize("number", range(len(KILLS)))
def test_openpbs_job_with_kill_matches_undisturbed_run(pbs, submit, whole, number):
    kill, cluster = KILLS[number], pbs.cluster
    job, out = submit(f"job-{number}")
    assert until((out / "checkpoints" / "latest").is_symlink) is not None, job.output
    time.sleep(4 * kill.delay)
    node = job.fields["exec_host"].split("+")[int(kill.place)].partition("/")[0]
    outcome = Outcome(number, kill, failure="not survived")
    began = time.monotonic()
    try:
        recovery.strike(cluster, kill.what, node, *PATTERNS.get(kill.what, ()))
        until(lambda: (out / "logs" / "2").is_dir() or job.state != "R")
        if (out / "logs" / "2").is_dir() or job.state in "QH":
            outcome.noticed = time.monotonic() - began
        if job.state in "QH":  # like an administrator: the job needs all nodes to start again
            repair(pbs, kill.what, node)
        until(lambda: trains(out, 2) or job.state in job.ended)
        if trains(out, 2):
            outcome.trains_again = time.monotonic() - began
            outcome.how = "requeue" if job.fields.get("run_count") != "1" else "restart"
        elif job.state in job.ended:
            outcome.how = "went on"
        job.ends(limit=300)
        outcome.failure = "" if digest(out / "checkpoints" / "latest") == whole else "other weights"
        if left := cluster.left_over(nodes=[name for name in NODES if kill.what != "node" or name != node]):
            outcome.failure += f" left: {left}"
        output = job.output
    finally:
        if report := os.environ.get("KILLS_REPORT"):
            append(Path(report), [outcome])
        repair(pbs, kill.what, node)
        until(lambda: pbs.run("pbsnodes", "-a", user="root").count("state = free") == len(NODES), limit=60)
    assert not outcome.failure, output

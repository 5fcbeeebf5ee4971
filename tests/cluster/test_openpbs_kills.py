"""Twenty kills on a real OpenPBS of two nodes and a spare one: a rank, mpirun, a MOM, a node."""

import json
import os
import random
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import kills
from clusters import LIBRARY, OpenPbs, rendered, started
from recovery import left_over, trains, until
from support import digest

pytestmark = [pytest.mark.prove, pytest.mark.timeout(900)]
NODES = ("node1", "node2", "node3")
EPOCHS = 16
DRAW = random.Random(19)


@dataclass(frozen=True)
class Kill:
    """What dies, on the first node of the job or its second, and how many seconds after the first save."""

    what: str
    first: bool
    delay: float


KILLS = [
    Kill(what, what == "mpirun" or number % 2 == 1, round(DRAW.uniform(0, 4), 1))
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
    """Return the digest of a run that nobody touched."""
    job, out = submit("whole")
    assert job.wait()["Exit_status"] == "0", job.output
    return digest(out / "checkpoints" / "latest")


def strike(cluster, kill, node):
    match kill.what:
        case "rank":
            cluster.control("on", node, "pkill", "-KILL", "--newest", "--full", "[t]rainer .*--output-dir")
        case "mpirun":
            cluster.control("on", node, "pkill", "-KILL", "--exact", "prterun|mpirun")
        case "mom":
            cluster.control("on", node, "pkill", "-KILL", "--exact", "pbs_mom")
        case "node":
            cluster.control("kill", node)


@pytest.mark.parametrize("number", range(len(KILLS)))
def test_a_job_ends_as_if_nothing_had_happened(pbs, submit, whole, table, number):
    kill, cluster = KILLS[number], pbs.cluster
    job, out = submit(f"job-{number}")
    assert until((out / "checkpoints" / "latest").is_symlink) is not None, job.output
    time.sleep(kill.delay)
    hosts = [place.partition("/")[0] for place in job.fields["exec_host"].split("+")]
    node = hosts[0 if kill.first else 1]
    strike(cluster, kill, node)
    began = time.monotonic()
    noticed = until(lambda: (out / "logs" / "2").is_dir() or job.state == "F")
    again = until(lambda: trains(out, 2) or job.state == "F")
    seconds = time.monotonic() - began
    try:
        fields = job.wait(limit=300)
        remains = left_over(cluster, [name for name in NODES if kill.what != "node" or name != node])
        output = job.output
    finally:
        cluster.control("kill", node)
        cluster.control("boot", node)
        pbs.control("boot", pbs.prefix, node)
        until(lambda: pbs.run("pbsnodes", "-a", user="root").count("state = free") == len(NODES), limit=60)
    equal = fields["Exit_status"] == "0" and digest(out / "checkpoints" / "latest") == whole
    place = "first node" if kill.first else "second node"
    row = [kill.what, place, f"noticed {noticed or -1:.0f} s", f"trains {seconds if again is not None else -1:.0f} s"]
    row += [f"exit {fields['Exit_status']}", f"runs {fields.get('run_count')}", "equal" if equal else "not equal"]
    table("OpenPBS: killed", [row])
    if report := os.environ.get("KILLS_REPORT"):
        with Path(report).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"number": number, "row": row, "left": remains}) + "\n")
    assert equal, output
    assert not remains

"""The script for Slurm in docs/howto/epilogue.md, as the Epilog of a real Slurm of two nodes.

Each node has its own /tmp, the script's `disk`. A job has ended when its Epilog has ended on all nodes.
"""

import os
import re
import textwrap

import pytest

from clusters import REPORT, seen_by_ranks, until
from readme import FENCE
from support import ROOT

pytestmark = [pytest.mark.prove, pytest.mark.usefixtures("epilog")]
PAGE = (ROOT / "docs" / "howto" / "epilogue.md").read_text(encoding="utf-8").partition('=== "PBS"')[0]
SCRIPT = next(textwrap.dedent(fence[3]) for fence in FENCE.finditer(PAGE))
LINE = re.search(r"`(Epilog=/etc/slurm/\S+\.sh)`", PAGE)[1]
NODES = ("node1", "node2")
ALICE = 20001

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""
"""Ranks that ignore SIGTERM: Slurm sends SIGKILL to the whole job after KillWait."""

TASKS = """#!/usr/bin/env bash
#SBATCH --partition=cpu --array=1-2 --nodes=2 --ntasks-per-node=1
srun mkdir -p "/tmp/slipway-$SLURM_JOB_ID.mine/torchrun"
until [ -e "$SLURM_SUBMIT_DIR/end" ]; do sleep 0.2; done
exit 7
"""
"""Each task leaves a folder on both nodes."""


@pytest.fixture(scope="module")
def epilog(cluster):
    """Install the script as the page says; remove it afterwards."""
    etc, logs = cluster.folder / "etc", [cluster.folder / "log" / f"slurmd.{node}.log" for node in NODES]
    before = (etc / "slurm.conf").read_text()
    script = etc / LINE.rpartition("/")[2]  # the nodes share /etc/slurm

    def configure(text):
        """Write slurm.conf, and wait until each slurmd has read it, which it logs."""
        sizes = [log.stat().st_size for log in logs]
        (etc / "slurm.conf").write_text(text)
        cluster.run("scontrol", "reconfigure")
        read = until(lambda: all(log.stat().st_size > size for log, size in zip(logs, sizes, strict=True)), limit=60)
        assert read is not None

    script.write_text(SCRIPT)
    script.chmod(0o755)
    try:
        configure(f"{before}{LINE}\n")
        yield
    finally:
        cluster.cancel_jobs()
        configure(before)
        script.unlink()


@pytest.fixture
def folder(cluster):
    """Return a function that makes such a folder of a user on both nodes, and returns the two."""

    def folder(name, owner):
        paths = [cluster.folder / f"tmp.{node}" / name for node in NODES]
        for path in paths:
            path.mkdir()
            os.chown(path, owner, owner)
        return paths

    return folder


def left(cluster, name):
    """Return the nodes with such a folder."""
    return [path.parent.suffix[1:] for path in sorted(cluster.folder.glob(f"tmp.node*/slipway-{name}"))]


def states(cluster):
    """Return the states of the nodes: Slurm would drain one whose Epilog fails."""
    return cluster.run("sinfo", "--noheader", "--Node", "--partition=gpu", "--format=%T").split()


def test_documented_epilog_removes_what_killed_job_left(cluster, tmp_path, folder):
    script = tmp_path / "deaf.py"
    script.write_text(DEAF)
    job = cluster.submit("ddp.job", out=tmp_path / "killed", SLIPWAY_SCRIPT=str(script))
    job.until("deaf", times=4)
    assert left(cluster, f"{job.number}.*") == [*NODES]
    others = folder(f"slipway-{job.number}.other", ALICE) + folder(f"slipway-{job.number}0.other", 0)
    cluster.run("scancel", job.number)
    job.ends(JobState="CANCELLED", Restarts="0")
    assert [path for path in cluster.local_folders(job) if path not in others] == []
    assert all(path.exists() for path in others)
    assert states(cluster) == ["idle", "idle"]

    job = cluster.submit("ddp.job", out=tmp_path / "whole", SLIPWAY_SCRIPT=REPORT)
    job.ends(JobState="COMPLETED", ExitCode="0:0")
    assert seen_by_ranks(job.output, ranks=4) == {(4, "ddp", False)}
    assert states(cluster) == ["idle", "idle"]


def test_documented_epilog_keeps_other_tasks_and_needs_no_user_name(cluster, folder, users_folder):
    script, passwd = users_folder / "tasks.job", cluster.folder / "etc" / "passwd"
    script.write_text(TASKS)
    array = cluster.submit(script, out=users_folder / "run", folder=users_folder, CLUSTER_AS="alice")
    tasks = [cluster.job(f"{array.number}_{task}", array.log) for task in (1, 2)]
    assert until(lambda: all(task.state == "RUNNING" for task in tasks), limit=60) is not None
    first, second = (task.fields["JobId"] for task in tasks)
    assert until(lambda: left(cluster, "*.mine") == sorted(2 * NODES), limit=60) is not None, array.output
    others = folder(f"slipway-{first}.other", 0) + folder(f"slipway-{first}0.other", ALICE)
    known = passwd.read_text()
    passwd.write_text(re.sub("(?m)^alice:.*\n", "", known))
    try:
        # scancel --signal=KILL would send SIGTERM first
        node = tasks[0].fields["BatchHost"]
        cluster.control("on", node, "pkill", "-KILL", "--full", f"/job{int(first):05}/slurm_script$")
        tasks[0].ends(JobState="FAILED", ExitCode="0:9")
    finally:
        passwd.write_text(known)
    assert left(cluster, f"{first}.mine") == []
    assert left(cluster, f"{second}.mine") == [*NODES]
    (users_folder / "end").touch()
    tasks[1].ends(JobState="FAILED", ExitCode="7:0")
    assert left(cluster, f"{second}.mine") == []
    assert all(path.exists() for path in others)
    assert states(cluster) == ["idle", "idle"]

"""The script and the hook for PBS in docs/howto/epilogue.md, on a real OpenPBS of two nodes.

Each node has its own /tmp, the script's `disk`.
"""

import re
import shlex
import textwrap

import pytest

from clusters import LIBRARY, REPORT, seen_by_ranks, until
from readme import FENCE
from support import ROOT

pytestmark = [pytest.mark.prove, pytest.mark.usefixtures("hook")]
PAGE = (ROOT / "docs" / "howto" / "epilogue.md").read_text(encoding="utf-8")
SHOWN = {fence[2]: textwrap.dedent(fence[3]) for fence in FENCE.finditer(PAGE.partition('=== "PBS"')[2])}
"""The script (bash), the hook (python) and the commands that install it (console)."""
NODES = ("node1", "node2")
MOM = "/var/spool/pbs/mom_priv"
SITES_OWN = '#!/bin/sh\necho "$1 $2" >>/tmp/epilogue\n'
"""An `epilogue` of the site, which the hook must not replace."""
BOTH, NONE = (list(NODES), list(NODES)), ([], [])

TASKS = """#!/usr/bin/env bash
#PBS -q cpu -j oe -J 1-2 -l select=2:ncpus=1 -l place=scatter
number=${PBS_JOBID%%.*} number=${number/[/_} number=${number/]/}
for node in $(sort --unique "$PBS_NODEFILE"); do
    ssh "$node" "mkdir -p /tmp/slipway-$number.mine/torchrun
        PBS_JOBID='$PBS_JOBID' SLIPWAY_LAUNCH=step.$number setsid sleep 60$PBS_ARRAY_INDEX >/dev/null 2>&1 &"
done
until [ -e "$PBS_O_WORKDIR/end" ]; do sleep 0.2; done
exit 7
"""
"""Each task leaves a folder and a process on both nodes."""

ESCAPES = """
import subprocess
import time

subprocess.Popen(["sleep", "603"], start_new_session=True)
time.sleep(600)
"""
"""Ranks with children in sessions of their own, which PBS and mpirun do not end."""


def on_each(cluster, *words):
    return [cluster.control("on", node, *words) for node in NODES]


def kill(cluster, job):
    """Send SIGKILL to the job's script, and return its node, the job's first."""
    node = job.fields["exec_host"].partition("/")[0]
    cluster.control("on", node, "pkill", "-KILL", "--full", f"{MOM}/jobs/{re.escape(job.number)}.SC$")
    assert until(lambda: job.fields.get("Exit_status") == "137", limit=60) is not None, job.fields
    return node


@pytest.fixture(scope="module")
def hook(cluster, openpbs, tmp_path_factory):
    """Install script and hook as the page says, and an `epilogue` of the site; remove them afterwards."""

    def known():
        return ["slipway.PY" in said for said in on_each(cluster, "ls", f"{MOM}/hooks")]

    folder = tmp_path_factory.mktemp("epilogue")
    for name, text in (("script", SHOWN["bash"]), ("epilogue", SITES_OWN), ("slipway_hook.py", SHOWN["python"])):
        (folder / name).write_text(text)
    on_each(cluster, "install", "--mode=755", str(folder / "script"), "/etc/pbs-slipway.sh")
    on_each(cluster, "install", "--mode=700", str(folder / "epilogue"), MOM)
    try:
        for command in re.findall(r"(?m)^# qmgr (.*)$", SHOWN["console"]):
            cluster.run("env", f"--chdir={folder}", "/opt/pbs/bin/qmgr", *shlex.split(command))
        assert until(lambda: all(known()), limit=60) is not None
        yield
    finally:
        # Jobs first: a MOM on which one ended meanwhile kept the file for over a minute.
        cluster.run("sh", "-c", "cd /opt/pbs/bin && ./qselect | xargs --no-run-if-empty ./qdel || :")
        assert until(lambda: not openpbs.run("qselect", user="root"), limit=60) is not None
        openpbs.run("qmgr", "-c", "delete hook slipway", user="root")
        on_each(cluster, "rm", "/etc/pbs-slipway.sh", f"{MOM}/epilogue")
        assert until(lambda: not any(known()), limit=60) is not None


@pytest.fixture
def left(cluster):
    """Return a function that returns the nodes with such a folder and those with such a process."""

    def left(name, pattern):
        folders = [path.parent.suffix[1:] for path in cluster.folder.glob(f"tmp.node*/slipway-{name}")]
        return sorted(folders), sorted({line.partition(":")[0] for line in cluster.processes(pattern)})

    return left


def test_documented_hook_removes_what_killed_job_left(cluster, openpbs, left):
    folder = cluster.folder / "root" / "epilogue"
    folder.mkdir(parents=True)
    (folder / "escapes.py").write_text(ESCAPES)
    settings = {"user": "root", "SLIPWAY_LIB": str(LIBRARY)}
    job = openpbs.submit("ddp.pbs", out=folder / "killed", SLIPWAY_SCRIPT=str(folder / "escapes.py"), **settings)
    ours = f"{job.number.partition('.')[0]}.*", "^sleep 603$"
    assert until(lambda: left(*ours) == BOTH, limit=120) is not None, job.output
    first = kill(cluster, job)
    assert until(lambda: left(*ours) == NONE, limit=60) is not None, left(*ours)
    ran = {path.parent.suffix[1:]: path.read_text() for path in cluster.folder.glob("tmp.node*/epilogue")}
    assert ran == {first: f"{job.number} root\n"}

    job = openpbs.submit("ddp.pbs", out=folder / "whole", SLIPWAY_SCRIPT=REPORT, **settings)
    job.ends()
    assert seen_by_ranks(job.output, ranks=4) == {(4, "ddp", False)}


def test_documented_hook_keeps_other_tasks_and_users(cluster, openpbs, left, users_folder):
    script = users_folder / "tasks.pbs"
    script.write_text(TASKS)
    array = openpbs.submit(script, out=users_folder / "run").number.partition("[")[0]
    tasks = [openpbs.job(f"{array}[{task}].head") for task in (1, 2)]
    first, second = [(f"{array}_{task}.mine", f"^sleep 60{task}$") for task in (1, 2)]
    others = [cluster.folder / f"tmp.{node}" / f"slipway-{array}_{task}.other" for node in NODES for task in (1, 2)]
    assert until(lambda: left(*first) == left(*second) == BOTH, limit=60) is not None
    for path in others:
        path.mkdir()
    kill(cluster, tasks[0])
    assert until(lambda: left(*first) == NONE, limit=60) is not None, left(*first)
    assert left(*second) == BOTH
    assert all(path.exists() for path in others)
    (users_folder / "end").touch()
    tasks[1].ends(Exit_status="7")
    assert until(lambda: left(*second) == NONE, limit=60) is not None, left(*second)
    assert all(path.exists() for path in others)

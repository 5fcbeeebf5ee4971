"""Environments that are built on the nodes of a real Slurm cluster, which have no network but the cluster's own."""

import os
import subprocess
import sys

import pytest

from support import ROOT

pytestmark = pytest.mark.prove
SMALL = ["--arch", "mlp", "--epochs", "1", "--no-figures"]


@pytest.fixture(scope="module")
def offline():
    """Return the settings that leave pip nothing but the folder of `make wheelhouse`."""
    folder = ROOT / "wheelhouse"
    subprocess.run(["make", "wheelhouse", "VARIANT=cpu"], cwd=ROOT, check=True)
    return {
        "SLIPWAY_WHEELHOUSE": str(folder),
        "SLIPWAY_VARIANT": "cpu",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": "",
    }


def test_a_node_without_a_network_builds_what_jobs_then_run_in(cluster, tmp_path, table, offline):
    assert "default" not in cluster.control("on", "node1", "ip", "route")
    venv = tmp_path / "shared disk" / "environment"
    venv.parent.mkdir()
    build = cluster.submit("venv_build.job", out=tmp_path / "build", **offline, SLIPWAY_VENV=str(venv))
    built = build.wait(limit=900)
    assert built["JobState"] == "COMPLETED", build.output
    assert venv.is_symlink()
    job = cluster.submit("cpu.job", *SMALL, out=tmp_path / "run", SLIPWAY_VENV=str(venv))
    fields = job.wait()
    assert fields["JobState"] == "COMPLETED", job.output
    rows = [(name, row["JobState"], row["RunTime"]) for name, row in (("venv_build.job", built), ("cpu.job", fields))]
    table("an environment from the wheelhouse, network cut off", rows)


def test_a_site_builds_on_the_local_disk_at_each_start(cluster, tmp_path, table, offline):
    script = tmp_path / "cpu.job"
    words = ["render", "cpu", "--site", "example", "--set", "venv=local", "--set", "nodes=2", "--output", str(script)]
    subprocess.run([sys.executable, "-m", "jobgen", *words], cwd=ROOT, check=True)
    # Each of the two nodes has a /tmp of its own. An empty setting is the script's default.
    path = os.path.relpath(script, ROOT / "jobscripts")
    job = cluster.submit(path, *SMALL, out=tmp_path / "run", **offline, SLIPWAY_VENV="")
    fields = job.wait(limit=1000)
    assert fields["JobState"] == "COMPLETED", job.output
    assert job.output.count("setup: slipway, editable") == 2
    for node in ("node1", "node2"):
        assert f"slipway-{job.number}." not in cluster.control("on", node, "ls", "/tmp")  # noqa: S108 -- the node's own
    table("cpu.job, venv = local", [[fields["JobState"], fields["NodeList"], fields["RunTime"]]])

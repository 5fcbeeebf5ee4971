"""Environments that are built on nodes of a real Slurm cluster without an external network."""

import subprocess

import pytest

from clusters import rendered
from support import ROOT

pytestmark = pytest.mark.prove
SMALL = ["--arch", "mlp", "--epochs", "1", "--no-figures"]


@pytest.fixture(scope="module")
def offline():
    """Return the settings that restrict pip to the folder of `make wheelhouse`."""
    folder = ROOT / "wheelhouse"
    subprocess.run(["make", "wheelhouse", "VARIANT=cpu"], cwd=ROOT, check=True)
    return {
        "SLIPWAY_WHEELHOUSE": str(folder),
        "SLIPWAY_VARIANT": "cpu",
        "PIP_CONFIG_FILE": "/dev/null",
        "PIP_FIND_LINKS": "",
    }


def test_offline_node_builds_environment_that_jobs_run_in(cluster, tmp_path, table, offline):
    assert "default" not in cluster.control("on", "node1", "ip", "route")
    venv = tmp_path / "shared disk" / "environment"
    venv.parent.mkdir()
    build = cluster.submit("venv_build.job", out=tmp_path / "build", **offline, SLIPWAY_VENV=str(venv))
    built = build.ends(limit=900)
    assert venv.is_symlink()
    fields = cluster.submit("cpu.job", *SMALL, out=tmp_path / "run", SLIPWAY_VENV=str(venv)).ends()
    rows = [(name, row["JobState"], row["RunTime"]) for name, row in (("venv_build.job", built), ("cpu.job", fields))]
    table("an environment from the wheelhouse, network cut off", rows)


def test_venv_local_builds_environment_on_local_disk_per_job(cluster, tmp_path, table, offline):
    script = rendered(tmp_path, "cpu", "example", "venv=local", "nodes=2")
    # Each of the two nodes has a separate /tmp. An empty setting is the script's default.
    job = cluster.submit(script, *SMALL, out=tmp_path / "run", **offline, SLIPWAY_VENV="")
    fields = job.ends(limit=1000)
    assert job.output.count("setup: slipway, editable") == 2
    assert cluster.local_folders(job) == []
    table("cpu.job, venv = local", [[fields["JobState"], fields["NodeList"], fields["RunTime"]]])

"""selftest.job, unedited, on a real Slurm cluster: healthy, and with a fault on one of its nodes."""

import re

import pytest

from messages import assert_error, slugs
from support import ROOT


@pytest.mark.parametrize("backend", ["ddp", pytest.param("horovod", marks=pytest.mark.prove)])
@pytest.mark.parametrize("way", ["venv", "container"])
def test_selftest_of_healthy_nodes_reports_no_fault(request, cluster, tmp_path, table, way, backend):  # noqa: PLR0917 -- fixtures
    inside = request.getfixturevalue("image") if way == "container" else {}
    job = cluster.submit("selftest.job", out=tmp_path / "run", BACKEND=backend, **inside)
    fields = job.ends()
    ranks = sorted(line for line in job.output.splitlines() if line.startswith("node"))
    assert [line.partition(", cpu")[0] for line in ranks] == [
        f"node{1 + rank // 2}: rank {rank}, local rank {rank % 2}" for rank in range(4)
    ]
    assert re.search(r"selftest: 4 rank\(s\).* 2 node", job.output)
    assert "selftest-failed" not in slugs(job.output)
    table(f"selftest.job, BACKEND={backend}, {way}: {fields['RunTime']}", [[line] for line in ranks])


def test_selftest_reports_node_with_different_sources(cluster, tmp_path, table):
    there, other = ROOT / "src" / "trainer" / "train.py", tmp_path / "train.py"
    other.write_text(f"{there.read_text()}# an older checkout\n")
    cluster.control("on", "node2", "mount", "--bind", str(other), str(there))
    try:
        job = cluster.submit("selftest.job", out=tmp_path / "run")
        job.ends(JobState="FAILED")
    finally:
        cluster.control("on", "node2", "umount", str(there))
    said = job.output.splitlines()[-1]
    assert said.startswith("selftest.job: error[selftest-failed]: ")
    assert_error(said, "selftest-failed", "selftest: ", "trainer ", "(node2)")
    table("selftest.job: node2 has other sources", [[said]])

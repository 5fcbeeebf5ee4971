"""selftest.job, unedited, on a real Slurm cluster: healthy, and with a fault on one of its nodes."""

import os
import re

import pytest

from messages import assert_error, slugs
from support import ROOT


@pytest.mark.parametrize("backend", ["ddp", pytest.param("horovod", marks=pytest.mark.prove)])
@pytest.mark.parametrize("way", ["venv", "container"])
def test_healthy_nodes_have_no_fault(request, cluster, tmp_path, table, way, backend):  # noqa: PLR0917 -- fixtures
    inside = request.getfixturevalue("image") if way == "container" else {}
    job = cluster.submit("selftest.job", out=tmp_path / "run", BACKEND=backend, **inside)
    fields = job.wait()
    assert fields["JobState"] == "COMPLETED", job.output
    ranks = sorted(line for line in job.output.splitlines() if line.startswith("node"))
    assert [line.partition(", cpu")[0] for line in ranks] == [
        f"node{1 + rank // 2}: rank {rank}, local rank {rank % 2}" for rank in range(4)
    ]
    assert re.search(r"selftest: 4 rank\(s\).* 2 node", job.output)
    assert "selftest-failed" not in slugs(job.output)
    table(f"selftest.job, BACKEND={backend}, {way}: {fields['RunTime']}", [[line] for line in ranks])


def test_a_node_with_other_sources_is_named(cluster, tmp_path, table):
    there, other = ROOT / "src" / "trainer" / "loop.py", tmp_path / "loop.py"
    other.write_text(f"{there.read_text()}# an older checkout\n")
    cluster.control("on", "node2", "mount", "--bind", str(other), str(there))
    try:
        job = cluster.submit("selftest.job", out=tmp_path / "run")
        fields = job.wait()
    finally:
        cluster.control("on", "node2", "umount", str(there))
    assert fields["JobState"] == "FAILED", job.output
    said = job.output.splitlines()[-1]
    assert said.startswith("selftest.job: error[selftest-failed]: ")
    assert_error(said, "selftest-failed", "selftest: ", "trainer ", "(node2)")
    table("selftest.job: node2 has other sources", [[said]])


@pytest.mark.parametrize(
    ("edit", "env", "slug", "values"),
    [
        (('--nproc-per-node="$ranks_per_node"', "--nproc-per-node=1"), {}, "wrong-world-size", (" 2 ", " 4 ")),
        (("", ""), {"OMP_NUM_THREADS": "64"}, "selftest-failed", ("node1 ", " 128 ")),
    ],
    ids=["too few ranks", "too many threads"],
)
def test_what_differs_from_the_plan_is_named(  # noqa: PLR0917 -- fixtures
    cluster, tmp_path, table, edit, env, slug, values
):
    script = tmp_path / "selftest.job"
    script.write_text((ROOT / "jobscripts" / "selftest.job").read_text().replace(*edit))
    job = cluster.submit(os.path.relpath(script, ROOT / "jobscripts"), out=tmp_path / "run", **env)
    assert job.wait()["JobState"] == "FAILED", job.output
    said = next(line for line in job.output.splitlines() if line.startswith("selftest.job: error["))
    assert_error(said, slug, *values)
    table(f"selftest.job: {slug}", [[said]])

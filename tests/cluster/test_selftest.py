"""selftest.job, unedited, on a real Slurm cluster: healthy, and with a fault on one of its nodes."""

import os

import pytest

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
    assert "selftest: 4 rank(s) on 2 node(s), nothing wrong" in job.output
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
    assert "trainer differs: " in job.output
    said = job.output.splitlines()[-1]
    assert said.startswith("selftest.job: failed: selftest: trainer differs: ")
    assert "(node2)" in said
    table("selftest.job: node2 has other sources", [[said]])


@pytest.mark.parametrize(
    ("edit", "env", "expected"),
    [
        (('--nproc-per-node="$ranks_per_node"', "--nproc-per-node=1"), {}, "the world has 2 ranks, but 4 were planned"),
        (("", ""), {"OMP_NUM_THREADS": "64"}, "node1 computes with 128 threads on "),
    ],
    ids=["too few ranks", "too many threads"],
)
def test_what_differs_from_the_plan_is_named(cluster, tmp_path, table, edit, env, expected):  # noqa: PLR0917 -- fixtures
    script = tmp_path / "selftest.job"
    script.write_text((ROOT / "jobscripts" / "selftest.job").read_text().replace(*edit))
    job = cluster.submit(os.path.relpath(script, ROOT / "jobscripts"), out=tmp_path / "run", **env)
    assert job.wait()["JobState"] == "FAILED", job.output
    said = next(line for line in job.output.splitlines() if line.startswith("selftest.job: failed: "))
    assert expected in said
    table(f"selftest.job: {expected}", [[said]])

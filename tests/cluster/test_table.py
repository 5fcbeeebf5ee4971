"""Every script x container or environment x BACKEND x library, standalone or resubmitted: what its ranks see."""

import pytest

from clusters import REPORT, seen_by_ranks
from jobgen.cli import main

RANKS = {"single.job": 1, "cpu.job": 2}
CELLS = [
    ("ddp.job", "ddp"),
    ("ddp.job", "horovod"),
    ("ddp-mpirun.job", "ddp"),
    ("ddp-mpirun.job", "horovod"),
    ("ddp-ranks.job", "ddp"),
    ("ddp-ranks.job", "horovod"),
    ("horovod-gloo.job", "horovod"),
    ("horovod-gloo.job", "ddp"),
    ("horovod.job", "horovod"),
    ("horovod-srun.job", "horovod"),
    ("single.job", "single"),
    ("cpu.job", "ddp"),
    ("cpu.job", "horovod"),
    ("ddp.pbs", "ddp"),
    ("ddp.pbs", "horovod"),
    ("horovod.pbs", "horovod"),
]
SHORT = {
    ("ddp.job", "horovod", "container"),
    ("horovod-gloo.job", "ddp", "venv"),
    ("horovod.job", "horovod", "container"),
    ("ddp.pbs", "ddp", "venv"),
    ("ddp-ranks.job", "ddp", "container"),
}
"""Pairs that `make test` runs; the product is `make prove`'s."""


def rows():
    for script, backend in CELLS:
        for way in ("venv", "container"):
            marks = [] if (script, backend, way) in SHORT else [pytest.mark.prove]
            yield pytest.param(script, backend, way, marks=marks, id=f"{script}-{backend}-{way}")


def proven(job, *, ranks, backend, way):
    """Wait for the job and return its fields; every rank must have seen the same world, as planned."""
    fields = job.wait()
    assert fields["JobState"] == "COMPLETED", job.output
    assert seen_by_ranks(job.output, ranks=ranks) == {(ranks, backend, way == "container")}
    return fields


@pytest.mark.parametrize(("script", "backend", "way"), list(rows()))
def test_ranks_form_the_planned_world(request, cluster, tmp_path, table, script, backend, way):  # noqa: PLR0917 -- fixtures
    env = {**(request.getfixturevalue("image") if way == "container" else {}), "BACKEND": backend}
    ranks = RANKS.get(script, 4)
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_SCRIPT=REPORT, **env)
    fields = proven(job, ranks=ranks, backend=backend, way=way)
    row = [script, f"BACKEND={backend}", way, f"{ranks} ranks", fields["RunTime"], fields["ExitCode"]]
    if not script.endswith(".pbs"):
        # job.sh alone, from another folder, with nothing set but what this machine is like
        machine = {name: env[name] for name in ("APPTAINER_BIND", "PATH") if name in env}
        job = cluster.resubmit(tmp_path / "run", folder=tmp_path, **machine)
        again = proven(job, ranks=ranks, backend=backend, way=way)
        row += ["job.sh again", again["RunTime"], again["ExitCode"]]
        begun = (tmp_path / "run" / "logs" / "2" / "job").read_text().split()
        assert (begun[:2], len(begun)) == (["slurm", job.number], 3)
    table(f"cluster: {script}, BACKEND={backend}, {way}", [row])


@pytest.mark.prove
@pytest.mark.parametrize("way", ["venv", "container"])
@pytest.mark.parametrize(("script", "backend"), CELLS)
def test_a_standalone_script_does_the_same(request, cluster, tmp_path, table, script, backend, way):  # noqa: PLR0917 -- fixtures
    env = {**(request.getfixturevalue("image") if way == "container" else {}), "BACKEND": backend}
    spec, _, kind = script.partition(".")
    path = tmp_path / script
    site = "pbs" if kind == "pbs" else "example"
    assert main(["render", spec, "--site", site, "--standalone", "--output", str(path)]) == 0
    job = cluster.submit(str(path), out=tmp_path / "run", SLIPWAY_SCRIPT=REPORT, SLIPWAY_LIB="", **env)
    fields = proven(job, ranks=RANKS.get(script, 4), backend=backend, way=way)
    row = [script, f"BACKEND={backend}", way, "standalone", fields["RunTime"], fields["ExitCode"]]
    table(f"cluster: {script}, BACKEND={backend}, {way}, standalone", [row])

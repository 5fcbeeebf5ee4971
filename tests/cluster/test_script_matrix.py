"""Every script x container or environment x BACKEND x library, standalone or resubmitted: what its ranks print."""

import itertools

import pytest

from clusters import REPORT, rendered, seen_by_ranks

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
    for (script, backend), way, form in itertools.product(CELLS, ("venv", "container"), ("library", "standalone")):
        marks = [] if (script, backend, way) in SHORT and form == "library" else [pytest.mark.prove]
        yield pytest.param(script, backend, way, form, marks=marks, id=f"{script}-{backend}-{way}-{form}")


def proven(job, *, ranks, backend, way):
    """Wait for the job and return its fields; every rank must have seen the same world, as planned."""
    fields = job.ends()
    assert seen_by_ranks(job.output, ranks=ranks) == {(ranks, backend, way == "container")}
    return fields


@pytest.mark.parametrize(("script", "backend", "way", "form"), list(rows()))
def test_ranks_form_planned_world(request, cluster, tmp_path, table, script, backend, way, form):  # noqa: PLR0917 -- fixtures
    env = {**(request.getfixturevalue("image") if way == "container" else {}), "BACKEND": backend}
    ranks, out = RANKS.get(script, 4), tmp_path / "run"
    settings, path = {"SLIPWAY_SCRIPT": REPORT}, script
    if form == "standalone":
        spec, _, kind = script.partition(".")
        path = rendered(tmp_path, spec, "pbs" if kind == "pbs" else "example", standalone=True)
        settings["SLIPWAY_LIB"] = ""
    fields = proven(cluster.submit(path, out=out, **settings, **env), ranks=ranks, backend=backend, way=way)
    row = [script, f"BACKEND={backend}", way, form, f"{ranks} ranks", fields["RunTime"]]
    if form == "library" and not script.endswith(".pbs"):
        # only job.sh, from another folder, with only this machine's settings
        machine = {name: env[name] for name in ("APPTAINER_BIND", "PATH") if name in env}
        again = cluster.resubmit(out, folder=tmp_path, **machine)
        row += ["job.sh again", proven(again, ranks=ranks, backend=backend, way=way)["RunTime"]]
        begun = (out / "logs" / "2" / "job").read_text().split()
        assert (begun[:2], len(begun)) == (["slurm", again.number], 3)
    table(f"cluster: {script}, BACKEND={backend}, {way}, {form}", [row])

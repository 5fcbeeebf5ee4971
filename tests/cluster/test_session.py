"""A user's script with a session, launched by the committed job scripts on a real Slurm cluster of two nodes."""

import json
import time

import pytest

from support import ROOT, status

SCRIPTS = ROOT / "tests" / "scripts" / "session"
LONG = ["--epochs", "400", "--workers", "1"]
"""Longer than a test waits before it ends a run; a worker beside each rank gets the signals too."""
HOROVOD = {"BACKEND": "horovod", "HOROVOD_FUSION_THRESHOLD": "0"}
"""Fusion would sum the gradients of four ranks in the order of their arrival."""
WAYS = [
    pytest.param("ddp.job", "classifier.py", {}, False, id="ddp"),
    pytest.param("ddp-ranks.job", "classifier.py", {}, False, id="ddp-ranks"),
    pytest.param("ddp.job", "under_horovod.py", HOROVOD, False, id="horovod"),
    pytest.param("ddp.job", "classifier.py", {}, True, id="container"),
    pytest.param("ddp.job", "under_horovod.py", HOROVOD, True, id="horovod-container"),
]


def content(out):
    latest = out / "checkpoints" / "latest"
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        del record["elapsed"]
        record.pop("steps_per_second", None)
    return records, {file.name: file.read_bytes() for file in latest.glob("*.safetensors")}


@pytest.mark.prove
@pytest.mark.parametrize(("launcher", "script", "env", "contained"), WAYS)
def test_a_run_out_of_time_is_requeued_and_ends_as_if_never_stopped(  # noqa: PLR0917 -- parameters of a test
    request, cluster, tmp_path, launcher, script, env, contained, table
):
    inside = request.getfixturevalue("image") if contained else {}
    settings = {"SLIPWAY_SCRIPT": str(SCRIPTS / script), **env, **inside}
    flags = ["--epochs", "60"]
    whole = cluster.submit(launcher, *flags, out=tmp_path / "whole", **settings)
    assert whole.wait()["JobState"] == "COMPLETED", whole.output
    job = cluster.submit(launcher, *flags, out=tmp_path / "run", **settings)
    job.until("step 50 ")
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), job.output
    assert "resumed at step" in job.output
    assert content(tmp_path / "run") == content(tmp_path / "whole")
    said = [line for line in job.output.splitlines() if "out of time" in line or "resumed" in line or "done at" in line]
    table(f"a session out of time: {launcher}", [[line] for line in said])


@pytest.mark.parametrize("way", ["scancel", "STOP"])
def test_a_user_ends_it_for_good(cluster, tmp_path, way):
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", *LONG, out=out, SLIPWAY_SCRIPT=str(SCRIPTS / "classifier.py"))
    job.until("step 50 ")
    if way == "scancel":
        cluster.run("scancel", job.number)
    else:
        (out / "STOP").write_text("user\n")
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED" if way == "scancel" else "FAILED", "0"), job.output
    deadline = time.monotonic() + 30  # the ranks may save after Slurm calls the job cancelled
    while status(out)["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert status(out)["reason"] == ("signal" if way == "scancel" else "user")
    assert status(out)["step"] >= 50


@pytest.mark.prove
def test_a_lost_node_is_survived(cluster, tmp_path):
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", "--epochs", "100", out=out, SLIPWAY_SCRIPT=str(SCRIPTS / "classifier.py"))
    job.until("step 50 ")
    cluster.control("kill", "node2")
    deadline = time.monotonic() + 90
    while "down" not in cluster.run("sinfo", "--noheader", "--nodes=node2", "--format=%T"):  # it boots no sooner
        assert time.monotonic() < deadline, "Slurm has not noticed"
        time.sleep(0.5)
    cluster.control("boot", "node2")
    fields = job.wait()
    assert fields["JobState"] == "COMPLETED", job.output
    assert (status(out)["state"], status(out)["step"]) == ("done", 700)
    assert status(out)["start_step"] > 0

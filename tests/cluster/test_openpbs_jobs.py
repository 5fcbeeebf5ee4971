"""The committed PBS scripts on a real OpenPBS of two nodes: as root in the environment, as alice in the image."""

import re
import shutil
import time
from pathlib import Path

import pytest

from clusters import AS_ROOT, LIBRARY, REPORT, seen_by_ranks
from jobgen.cli import main
from support import ROOT, digest, status

pytestmark = pytest.mark.prove
CELLS = [("ddp.pbs", "ddp"), ("ddp.pbs", "horovod"), ("horovod.pbs", "horovod")]
LATE = ("-l", "walltime=00:03:10")
"""Short enough for a test; beyond the 140 s that the script keeps for an answer and a save, some steps are gained."""


@pytest.fixture(params=["root in the environment", "alice in the image"])
def user(request, cluster, users_folder):
    """Return a user's settings, and a folder of that user's."""
    if request.param.startswith("root"):
        folder = cluster.folder / "root" / users_folder.name
        folder.mkdir(parents=True)
        return {"user": "root", "SLIPWAY_LIB": str(LIBRARY)}, folder
    image = dict(request.getfixturevalue("users_image"))
    user = image.pop("CLUSTER_AS")
    return {**image, "user": user, "SLIPWAY_LIB": str(LIBRARY)}, users_folder


def ended(job, *, code=0):
    fields = job.wait()
    assert fields["Exit_status"] == str(code), job.output
    return fields


@pytest.mark.parametrize("form", ["library", "standalone"])
@pytest.mark.parametrize(("script", "backend"), CELLS)
def test_ranks_form_the_planned_world(openpbs, user, table, script, backend, form):  # noqa: PLR0917 -- fixtures
    settings, folder = user
    path = ROOT / "jobscripts" / script
    if form == "standalone":
        path = folder / script
        words = ["render", script.partition(".")[0], "--site", "pbs", "--standalone", "--output", str(path)]
        assert main(words) == 0
        settings = {**settings, "SLIPWAY_LIB": ""}
    way = settings.get("USE_CONTAINER") == "1"
    job = openpbs.submit(path, out=folder / "run", SLIPWAY_SCRIPT=REPORT, BACKEND=backend, **settings)
    fields = ended(job)
    assert seen_by_ranks(job.output, ranks=4) == {(4, backend, way)}
    row = [script, f"BACKEND={backend}", settings["user"], form, fields["resources_used.walltime"], "0"]
    if form == "library":
        words = {name: settings[name] for name in ("user", "PATH", "APPTAINER_BIND") if name in settings}
        again = openpbs.resubmit(folder / "run", **words)
        fields = ended(again)
        assert seen_by_ranks(again.output, ranks=4) == {(4, backend, way)}
        row += ["job.sh again", fields["resources_used.walltime"], "0"]
    table(f"OpenPBS: {script}, BACKEND={backend}, {settings['user']}, {form}", [row])


def test_a_time_limit_is_continued_by_the_next_job_bitwise(openpbs, user, config, table):
    settings, folder = user
    shutil.copy(config(400), folder / "run.toml")
    settings = {**settings, "SLIPWAY_CONFIG": str(folder / "run.toml")}
    # The next job of a chain gets no environment but what the site's file says.
    script = folder / "ddp.pbs"
    machine = {**AS_ROOT, "APPTAINER_BIND": settings.get("APPTAINER_BIND", "")}
    words = [word for name, value in machine.items() for word in ("--set", f"env.{name}='{value}'")]
    assert main(["render", "ddp", "--site", "pbs", *words, "--output", str(script)]) == 0
    whole = openpbs.submit(script, out=folder / "whole", **settings)
    assert whole.wait(500)["Exit_status"] == "0", whole.output
    job = openpbs.submit(script, out=folder / "run", qsub=LATE, **settings)
    asked, output = job.wait(), job.output
    assert asked["Exit_status"] == "75", output
    fields = asked
    while fields["Exit_status"] == "75":
        number = re.search(r"continued by job (\d+)", job.output)
        assert number, output
        job = openpbs.job(f"{number[1]}.head")
        fields = job.wait()
        output += job.output
        same = ("queue", "Resource_List.walltime", "Resource_List.select", "Account_Name", "Join_Path")
        assert [fields.get(name) for name in same] == [asked.get(name) for name in same]
    assert fields["Exit_status"] == "0", output
    assert digest(folder / "run/checkpoints/latest") == digest(folder / "whole/checkpoints/latest")
    said = [line for line in output.splitlines() if "going on" in line or "resumed" in line]
    table(f"OpenPBS: time limit, {settings['user']}", [[line] for line in said])


def test_qdel_saves_and_ends_it_for_good(openpbs, user, config, cluster):
    settings, folder = user
    shutil.copy(config(4000), folder / "run.toml")
    job = openpbs.submit("ddp.pbs", out=folder / "run", SLIPWAY_CONFIG=str(folder / "run.toml"), **settings)
    job.until("samples/s", times=2)
    openpbs.run("qdel", job.number, user=settings["user"])
    job.wait()
    said = status(folder / "run")
    assert (said["state"], said["requeue"]) == ("stopped", False), job.output
    deadline = time.monotonic() + 30  # mpirun may end before the last rank of the other node does
    while any("-m trainer" in cluster.control("on", node, "ps", "-eo", "args") for node in ("node1", "node2")):
        assert time.monotonic() < deadline, "ranks were left behind"
        time.sleep(0.5)


def test_an_array_task_has_a_folder_without_brackets(openpbs, users_folder, users_image):
    settings = {**users_image, "user": "alice", "SLIPWAY_LIB": str(LIBRARY), "SLIPWAY_OUTPUT": str(users_folder)}
    del settings["CLUSTER_AS"]
    job = openpbs.submit("ddp.pbs", out=users_folder / "x", qsub=("-J", "1-2"), SLIPWAY_SCRIPT=REPORT,
                         **{**settings, "SLIPWAY_RUN_DIR": ""})  # fmt: skip
    number = job.number.partition("[")[0]
    for task in (1, 2):
        openpbs.job(f"{number}[{task}].head").wait()
        assert (Path(users_folder) / f"ddp-{number}_{task}" / "logs" / "1" / "job").exists()

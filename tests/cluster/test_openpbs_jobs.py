"""The committed PBS scripts on a real OpenPBS of two nodes: as root in the environment, as alice in the image.

`build/openpbs` compiles it; without that, or OPENPBS_SOURCE to do it from, all of this is skipped.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from clusters import AS_ROOT, LIBRARY, REPORT, rendered, seen_by_ranks
from support import ROOT, digest, status

pytestmark = pytest.mark.prove
CELLS = [("ddp.pbs", "ddp"), ("ddp.pbs", "horovod"), ("horovod.pbs", "horovod")]
LATE = ("-l", "walltime=00:03:10")
"""Short enough for a test, but longer than the 140 s reserved for a reply and a save, so some steps are gained."""


@pytest.fixture(params=["root in the environment", "alice in the image"])
def user(request, cluster, users_folder):
    """Return a user's settings and a folder of that user."""
    if request.param.startswith("root"):
        folder = cluster.folder / "root" / users_folder.name
        folder.mkdir(parents=True)
        return {"user": "root", "SLIPWAY_LIB": str(LIBRARY)}, folder
    image = dict(request.getfixturevalue("users_image"))
    user = image.pop("CLUSTER_AS")
    return {**image, "user": user, "SLIPWAY_LIB": str(LIBRARY)}, users_folder


NODES = """#!/usr/bin/env bash
#PBS -q gpu -j oe -l select=2:ncpus=8:ngpus=2:mpiprocs=2 -l place=scatter
cd "$PBS_O_WORKDIR" && id --user --name && pwd
for node in $(sort --unique "$PBS_NODEFILE"); do ssh "$node" hostname; done
printf '%s' "$SLIPWAY_ARGS" >"$PBS_JOBID.arguments"
"""


@pytest.mark.parametrize("name", ["alice", "root"])
def test_openpbs_job_gets_both_nodes_and_its_settings(openpbs, users_folder, name):
    script, arguments = users_folder / "job.pbs", ["--name", "it's a \"test\", isn't it?", "$HOME", "two\nlines"]
    script.write_text(NODES)
    job = openpbs.submit(script, *arguments, out=users_folder / "run", user=name)
    fields = job.ends()
    assert job.output.splitlines() == [name, str(users_folder), "node1", "node2"]
    assert job.log == users_folder / f"job.pbs.o{job.number.removesuffix('.head')}"
    assert fields["Resource_List.ngpus"] == "4"
    assert shlex.split((users_folder / f"{job.number}.arguments").read_text()) == arguments


@pytest.mark.parametrize("form", ["library", "standalone"])
@pytest.mark.parametrize(("script", "backend"), CELLS)
def test_ranks_form_planned_world_on_openpbs(openpbs, user, table, script, backend, form):  # noqa: PLR0917 -- fixtures
    settings, folder = user
    path = ROOT / "jobscripts" / script
    if form == "standalone":
        path = rendered(folder, script.partition(".")[0], "pbs", standalone=True)
        settings = {**settings, "SLIPWAY_LIB": ""}
    way = settings.get("USE_CONTAINER") == "1"
    job = openpbs.submit(path, out=folder / "run", SLIPWAY_SCRIPT=REPORT, BACKEND=backend, **settings)
    fields = job.ends()
    assert seen_by_ranks(job.output, ranks=4) == {(4, backend, way)}
    row = [script, f"BACKEND={backend}", settings["user"], form, fields["resources_used.walltime"], "0"]
    if form == "library":
        words = {name: settings[name] for name in ("user", "PATH", "APPTAINER_BIND") if name in settings}
        again = openpbs.resubmit(folder / "run", **words)
        fields = again.ends()
        assert seen_by_ranks(again.output, ranks=4) == {(4, backend, way)}
        row += ["job.sh again", fields["resources_used.walltime"], "0"]
    table(f"OpenPBS: {script}, BACKEND={backend}, {settings['user']}, {form}", [row])


def test_next_job_continues_after_time_limit_bitwise(openpbs, user, config, table):
    settings, folder = user
    shutil.copy(config(400), folder / "run.toml")
    settings = {**settings, "SLIPWAY_CONFIG": str(folder / "run.toml")}
    # The next job of a chain gets only the environment of the site file.
    machine = {**AS_ROOT, "APPTAINER_BIND": settings.get("APPTAINER_BIND", "")}
    script = rendered(folder, "ddp", "pbs", *(f"env.{name}='{value}'" for name, value in machine.items()))
    openpbs.submit(script, out=folder / "whole", **settings).ends(limit=500)
    job = openpbs.submit(script, out=folder / "run", qsub=LATE, **settings)
    asked = fields = job.ends(Exit_status="75")
    output = job.output
    while fields["Exit_status"] == "75":
        number = re.search(r"continued by job (\d+)", job.output)[1]
        job = openpbs.job(f"{number}.head")
        fields = job.ends(job_state="F")
        output += job.output
        same = ("queue", "Resource_List.walltime", "Resource_List.select", "Account_Name", "Join_Path")
        assert [fields.get(name) for name in same] == [asked.get(name) for name in same]
    assert fields["Exit_status"] == "0", output
    assert digest(folder / "run/checkpoints/latest") == digest(folder / "whole/checkpoints/latest")
    said = [line for line in output.splitlines() if "[requeued]" in line or "resumed" in line]
    table(f"OpenPBS: time limit, {settings['user']}", [[line] for line in said])


def test_qdel_saves_and_run_is_not_requeued(openpbs, user, config, cluster):
    settings, folder = user
    shutil.copy(config(4000), folder / "run.toml")
    job = openpbs.submit("ddp.pbs", out=folder / "run", SLIPWAY_CONFIG=str(folder / "run.toml"), **settings)
    job.until("samples/s", times=2)
    openpbs.run("qdel", job.number, user=settings["user"])
    job.ends(job_state="F")
    said = status(folder / "run")
    assert (said["state"], said["requeue"]) == ("stopped", False), job.output
    # mpirun may end before the last rank of the other node
    assert cluster.left_over("-m trainer", limit=30) == []


def test_run_folder_of_array_task_has_no_brackets(openpbs, users_folder, users_image):
    settings = {**users_image, "user": "alice", "SLIPWAY_LIB": str(LIBRARY), "SLIPWAY_OUTPUT": str(users_folder)}
    del settings["CLUSTER_AS"]
    job = openpbs.submit("ddp.pbs", out=users_folder / "x", qsub=("-J", "1-2"), SLIPWAY_SCRIPT=REPORT,
                         **{**settings, "SLIPWAY_RUN_DIR": ""})  # fmt: skip
    number = job.number.partition("[")[0]
    for task in (1, 2):
        openpbs.job(f"{number}[{task}].head").ends(job_state="F")
        assert (Path(users_folder) / f"ddp-{number}_{task}" / "logs" / "1" / "job").exists()

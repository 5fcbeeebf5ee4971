"""RUN_DIR/job.sh alone continues a run: with the clone changed or deleted, on other nodes and GPUs."""

import json
import shutil

import pytest

from support import ROOT, status

pytestmark = pytest.mark.prove


def test_job_sh_resumes_run_after_clone_is_deleted(cluster, tmp_path, config, table):
    out, clone = tmp_path / "run", tmp_path / "clone"
    for name in ("jobscripts", "configs"):
        shutil.copytree(ROOT / name, clone / name)
    job = cluster.submit(str(clone / "jobscripts" / "ddp.job"), out=out, SLIPWAY_CONFIG=config(40))
    job.until("epoch 2/40")
    # an update of the clone that renames all functions of the library
    for path in (clone / "jobscripts" / "lib").glob("*.bash"):
        path.write_text(path.read_text().replace("preflight", "check_every_node").replace("finish", "conclude"))
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    job.until("resumed at step")
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    job.until("resumed at step", times=2)
    cluster.run("scancel", job.number)
    job.ends(JobState="CANCELLED")
    assert "command not found" not in job.output
    before = status(out)["step"]
    shutil.rmtree(clone)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    smaller = ("--nodes=1", "--gpus-per-node=1", "--cpus-per-task=3")
    again = cluster.resubmit(out, folder=folder, sbatch=smaller, OMP_NUM_THREADS="")
    again.ends(JobState="COMPLETED", NumNodes="1")
    assert status(out)["start_step"] == before
    run = json.loads((out / "run.json").read_text())
    assert (run["world_size"], run["variables"]["OMP_NUM_THREADS"]) == (1, "3")
    said = [line for line in (job.output + again.output).splitlines() if "[requeued]" in line or "resumed" in line]
    table("the clone changed, then gone; then one node of one GPU", [[line] for line in said])

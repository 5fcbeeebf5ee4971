"""A run is continued by RUN_DIR/job.sh alone: the clone changed or gone, other nodes and GPUs, after a crash."""

import json
import shutil

import pytest

from support import ROOT, status

pytestmark = pytest.mark.prove


@pytest.fixture
def clone(tmp_path):
    """Return a folder with the scripts, their library and the configurations, of which a test may do what it likes."""
    folder = tmp_path / "clone"
    for name in ("jobscripts", "configs"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


def test_the_clone_may_change_and_go_and_the_nodes_be_others(cluster, clone, tmp_path, config, table):
    out = tmp_path / "run"
    job = cluster.submit(str(clone / "jobscripts" / "ddp.job"), out=out, SLIPWAY_CONFIG=config(40))
    job.until("epoch 2/40")
    # an update of the clone in which no function of the library has its old name
    for path in (clone / "jobscripts" / "lib").glob("*.bash"):
        path.write_text(path.read_text().replace("preflight", "check_every_node").replace("finish", "conclude"))
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    job.until("resumed at step")
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    job.until("resumed at step", times=2)
    cluster.run("scancel", job.number)
    assert job.wait()["JobState"] == "CANCELLED", job.output
    assert "command not found" not in job.output
    before = status(out)["step"]
    shutil.rmtree(clone)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    smaller = ("--nodes=1", "--gpus-per-node=1", "--cpus-per-task=3")
    again = cluster.resubmit(out, folder=folder, sbatch=smaller, OMP_NUM_THREADS="")
    fields = again.wait()
    assert (fields["JobState"], fields["NumNodes"]) == ("COMPLETED", "1"), again.output
    assert status(out)["start_step"] == before
    run = json.loads((out / "run.json").read_text())
    assert (run["world_size"], run["variables"]["OMP_NUM_THREADS"]) == (1, "3")
    said = [line for line in (job.output + again.output).splitlines() if "going on" in line or "resumed" in line]
    table("the clone changed, then gone; then one node of one GPU", [[line] for line in said])


def test_an_attempt_that_crashes_is_no_success_though_the_one_before_was(cluster, tmp_path, config):
    out = tmp_path / "run"
    assert cluster.submit("ddp.job", out=out, SLIPWAY_CONFIG=config(1)).wait()["JobState"] == "COMPLETED"
    assert (out / "verdict.1").read_text().startswith("done ")
    crash = tmp_path / "crash"
    (crash / "trainer").mkdir(parents=True)
    shutil.copytree(ROOT / "src" / "trainer", crash / "trainer", dirs_exist_ok=True)
    loop = crash / "trainer" / "run.py"
    loop.write_text(loop.read_text() + "\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    for node in ("node1", "node2"):
        cluster.control("on", node, "mount", "--bind", str(loop), str(ROOT / "src" / "trainer" / "run.py"))
    try:
        again = cluster.resubmit(out, folder=tmp_path)
        fields = again.wait()
    finally:
        for node in ("node1", "node2"):
            cluster.control("on", node, "umount", str(ROOT / "src" / "trainer" / "run.py"))
    assert (fields["JobState"], fields["Restarts"]) == ("FAILED", "0"), again.output
    assert not (out / "verdict.2").exists()

"""Options of sbatch, and circumstances, that users and sites bring: on a real Slurm."""

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from clusters import FIXED, LIBRARY
from messages import assert_warning
from recovery import until
from support import ROOT, last_step, status

pytestmark = pytest.mark.prove
LONG = 4000
"""Epochs: longer than any test."""


@pytest.mark.parametrize(
    ("sbatch", "without"),
    [
        (("--hint=nomultithread",), ()),
        (("--gpus=4",), ()),
        (("--gpus=4",), ("--gpus-per-node",)),
        (("--gpus-per-task=2",), ("--gpus-per-node",)),
        (("--gres=gpu:2",), ("--gpus-per-node",)),
    ],
    ids=lambda words: " ".join(words) if words else "header",
)
def test_options_on_the_command_line(cluster, tmp_path, config, alone, table, sbatch, without):  # noqa: PLR0917 -- fixtures
    """All steps start: those of ranks, and those of one node or without a GPU. ``without`` are lines left out."""
    script = tmp_path / "ddp.job"
    lines = (ROOT / "jobscripts" / "ddp.job").read_text().splitlines(keepends=True)
    script.write_text("".join(line for line in lines if not any(f"#SBATCH {option}" in line for option in without)))
    settings = {"SLIPWAY_LIB": str(LIBRARY), "SLIPWAY_CONFIG": config(2)}
    job = cluster.submit(str(script), out=tmp_path / "run", sbatch=sbatch, **settings)
    fields, distance = job.proven(tmp_path / "run", alone, ranks=4)
    assert not list(cluster.folder.glob(f"tmp.node*/slipway-{job.number}.*"))
    table(f"sbatch {' '.join(sbatch)}", [[*sbatch, fields["JobState"], fields["RunTime"], f"{distance:.1e}"]])


def test_jobs_that_tasks_of_an_array_submit(cluster, tmp_path, config):
    """Each has a run folder of its own number, trains there, and is itself requeued when its time is over."""
    submit = f"sbatch --parsable --output={tmp_path}/%j.log {ROOT}/jobscripts/ddp.job"
    words = ["env", f"--chdir={tmp_path}", "sbatch", "--parsable", "--array=7-8", "--ntasks=1", "--output=/dev/null"]
    env = FIXED | {"SLIPWAY_VENV": sys.prefix, "SLIPWAY_CONFIG": config(40), "SLIPWAY_OUTPUT": str(tmp_path / "runs")}
    parent = cluster.run(*words, f"--wrap={submit} >>{tmp_path}/numbers", **env).strip()
    assert until(lambda: len(_lines(tmp_path / "numbers")) == 2, limit=60) is not None
    jobs = [cluster.job(number, tmp_path / f"{number}.log") for number in _lines(tmp_path / "numbers")]
    jobs[0].until("epoch 2/40")
    cluster.run("scancel", "--batch", "--signal=USR1", jobs[0].number)
    for job, restarts in zip(jobs, ("1", "0"), strict=True):
        fields = job.wait()
        assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", restarts), job.output
    folders = sorted(path.parent.name for path in (tmp_path / "runs").glob("*/run.json"))
    assert len(folders) == 2
    assert all(job.number in folder for job, folder in zip(jobs, folders, strict=True))
    assert not any(parent in folder for folder in folders)


def _lines(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def python_for_all(cluster):
    """Let alice run this Python where it is in a folder that only root may enter, such as root's home."""
    closed = next((path for path in Path(sys.base_prefix).parents if not path.stat().st_mode & 0o001), None)
    nodes = ("head", "node1", "node2") if closed else ()
    for node in nodes:
        inside = cluster.folder / f"open.{node}" / Path(sys.base_prefix).relative_to(closed)
        inside.mkdir(parents=True)
        cluster.control("on", node, "mount", "--bind", sys.base_prefix, str(inside))
        cluster.control("on", node, "mount", "--rbind", str(cluster.folder / f"open.{node}"), str(closed))
    yield
    for node in nodes:
        cluster.control("on", node, "umount", "--recursive", str(closed))


@pytest.mark.usefixtures("python_for_all")
def test_a_user_whose_files_the_group_may_write(cluster, users_folder, config, table):
    """umask 002 with a group of one's own: a clone, its library and the run folder are group-writable."""
    for name in ("jobscripts", "configs"):
        shutil.copytree(ROOT / name, users_folder / name)
    shutil.copy(config(2), users_folder / "run.toml")
    subprocess.check_call(["chown", "--recursive", "20001:20001", users_folder])
    subprocess.check_call(["chmod", "--recursive", "g+w", users_folder])
    env = {**FIXED, "CLUSTER_AS": "alice", "SLIPWAY_VENV": sys.prefix, "SLIPWAY_CONFIG": str(users_folder / "run.toml")}
    line = f"umask 002; cd {users_folder}; exec sbatch --parsable --output=log jobscripts/ddp.job"
    job = cluster.job(cluster.run("bash", "-c", line, **env).strip(), users_folder / "log")
    fields = job.wait()
    assert fields["JobState"] == "COMPLETED", job.output
    [run] = users_folder.glob("runs/*/run.json")
    again = f"umask 002; cd {users_folder}; exec sbatch --parsable --output=log {run.parent}/job.sh"
    job = cluster.job(cluster.run("bash", "-c", again, **env).strip(), users_folder / "log")
    assert job.wait()["JobState"] == "COMPLETED", job.output
    table("umask 002", [[oct(run.parent.stat().st_mode)[-4:], fields["JobState"], "job.sh again", job.state]])


@pytest.fixture
def kill_wait(cluster):
    """Let Slurm wait for 10 s between SIGTERM and SIGKILL."""
    path = cluster.folder / "etc" / "slurm.conf"
    before = path.read_text()

    def configure(text: str) -> None:
        path.write_text(text)
        cluster.run("scontrol", "reconfigure")
        time.sleep(1)

    configure(before.replace("KillWait=15", "KillWait=10"))
    assert "KillWait                = 10" in cluster.run("scontrol", "show", "config")
    yield
    configure(before)


@pytest.mark.usefixtures("kill_wait")
@pytest.mark.parametrize("ranks", ["save", "are deaf"])
def test_scancel_with_ten_seconds(cluster, tmp_path, config, ranks, table):
    """Ranks save and the job's folders go; or they are killed, and no process is left."""
    out = tmp_path / "run"
    env = {"SLIPWAY_CONFIG": config(LONG)}
    if ranks == "are deaf":
        script = tmp_path / "deaf.py"
        script.write_text(
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf', flush=True)\n"
            "for _ in range(600): time.sleep(1)\n"
        )
        env = {"SLIPWAY_SCRIPT": str(script)}
    job = cluster.submit("ddp.job", out=out, **env)
    job.until("epoch 2/" if ranks == "save" else "deaf", times=1 if ranks == "save" else 4)
    cluster.run("scancel", job.number)
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED", "0"), job.output
    assert until(lambda: not _ranks(cluster), limit=40) is not None, _ranks(cluster)
    folders = lambda: [*cluster.folder.glob(f"tmp.node*/slipway-{job.number}.*")]  # noqa: E731
    if ranks == "save":
        assert (status(out)["state"], status(out)["reason"]) == ("stopped", "signal")
        assert last_step(out) > 0
        assert until(lambda: not folders(), limit=20) is not None, folders()
    else:  # SIGKILL ended what would have removed them, too: the run's next attempt does
        assert len(folders()) == 2
        again = cluster.resubmit(out, folder=tmp_path)
        again.until("deaf", times=4)
        assert not folders(), again.output
        cluster.run("scancel", "--full", "--signal=KILL", again.number)
    table(f"scancel with KillWait 10: ranks that {ranks}", [[fields["JobState"], *job.output.splitlines()[-2:]]])


def _ranks(cluster) -> list[str]:
    """Return the command lines of processes that a job has left on the nodes."""
    names = ("deaf.py", "-m trainer", "guard.sh", "torchrun")
    lines = [cluster.control("on", node, "ps", "-eo", "args").splitlines() for node in ("node1", "node2")]
    return [line for found in lines for line in found if any(name in line for name in names)]


def test_a_controller_that_answers_after_25_seconds(cluster, tmp_path, config):
    """A rank dies while it is silent: no node is called lost, and the ranks are started again."""
    job = cluster.submit("ddp.job", out=tmp_path / "run", SLIPWAY_CONFIG=config(40), SLIPWAY_MAX_RESTARTS="3")
    job.until("epoch 2/40")
    signal = lambda name: cluster.control("on", "head", "pkill", f"-{name}", "--exact", "slurmctld")  # noqa: E731
    signal("STOP")
    waker = threading.Timer(25, signal, ["CONT"])
    waker.start()
    try:
        cluster.control("on", "node2", "pkill", "-KILL", "--oldest", "--exact", "python")
    finally:
        waker.join()
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "0"), job.output
    assert_warning(job.output, "restarted", "restart 1 ")
    for slug in ("node-lost", "node-suspect"):
        assert f"[{slug}]" not in job.output

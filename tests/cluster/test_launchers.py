"""Horovod, mpirun, ssh and PBS on the cluster: how such jobs stop, whom they serve, and what they are refused for."""

import re
import shutil
import time
from pathlib import Path

import pytest

from clusters import AS_ROOT, rendered
from messages import assert_names
from support import status

pytestmark = pytest.mark.prove

SLURM = ["horovod.job", "horovod-gloo.job", "ddp-mpirun.job"]
DDP = ["ddp.job", "ddp-ranks.job", "ddp-mpirun.job", "ddp.pbs"]
FOREIGN = Path(__file__).parent / "foreign"
OF_SSH = "Host key verification failed"
LATE = ("-l", "walltime=00:03:10")
"""Short enough for a test; beyond the 140 s that the script keeps for an answer and a save, some steps are gained."""


def epochs(number, config):
    return {"SLIPWAY_CONFIG": config(number)}


def end(cluster, script, job):
    cluster.run(*([str(Path(__file__).parent / "pbs" / "qdel")] if script.endswith("pbs") else ["scancel"]), job.number)


@pytest.mark.parametrize("script", SLURM)
def test_out_of_time_it_goes_on_as_often_as_allowed(cluster, tmp_path, config, script):
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_MAX_REQUEUES="1", **epochs(4000, config))
    for attempt in (1, 2):
        job.until("samples/s", times=2 * attempt)
        cluster.run("scancel", "--batch", "--signal=USR1", job.number)
        job.until("warning[requeued]" if attempt == 1 else "to continue: ")
        if attempt == 1:
            job.until("resumed at step")
    fields = job.wait()
    assert (fields["JobState"], fields["ExitCode"], fields["Restarts"]) == ("FAILED", "75:0", "1"), job.output
    assert status(tmp_path / "run")["step"] > status(tmp_path / "run")["start_step"] > 0


@pytest.mark.parametrize("script", [*SLURM, "ddp.pbs"])
@pytest.mark.parametrize("way", ["cancelled", "STOP"])
def test_a_user_ends_it_for_good(cluster, tmp_path, config, script, way):
    out = tmp_path / "run"
    job = cluster.submit(script, out=out, **epochs(4000, config))
    job.until("samples/s", times=2)
    if way == "STOP":
        (out / "STOP").write_text("user\n")
    else:
        end(cluster, script, job)
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("FAILED" if way == "STOP" else "CANCELLED", "0"), job.output
    deadline = time.monotonic() + 60  # the ranks may save after Slurm calls the job cancelled
    while status(out)["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (status(out)["state"], status(out)["requeue"]) == ("stopped", False), job.output
    assert status(out)["reason"] in ({"user"} if way == "STOP" else {"signal", "user"})


def test_under_pbs_it_looks_at_the_clock_and_is_continued_by_another_job(cluster, tmp_path, config):
    # The next job of a chain gets no environment but what the site's file says.
    script = rendered(tmp_path, "ddp", "pbs", *(f"env.{name}='{value}'" for name, value in AS_ROOT.items()))
    job = cluster.submit(script, out=tmp_path / "run", sbatch=LATE, SLIPWAY_MAX_REQUEUES="1", **epochs(4000, config))
    fields = job.wait(limit=200)
    assert fields["ExitCode"] == "75:0", job.output
    number = re.search(r"continued by job (\d+)", job.output)[1]
    following = type(job)(cluster, number, job.log.with_name(f"ddp.o{number}"))
    following.until("resumed at step")
    (tmp_path / "run" / "STOP").write_text("time-limit\n")
    assert following.wait()["ExitCode"] == "75:0"
    assert "to continue: " in following.output  # the bound


def test_under_pbs_it_requeues_itself_where_the_site_lets_it(cluster, tmp_path, config):
    script = rendered(tmp_path, "ddp", "pbs", "resume=requeue")
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_MAX_REQUEUES="1", **epochs(4000, config))
    for _ in (1, 2):
        job.until("samples/s", times=2)
        (tmp_path / "run" / "STOP").write_text("time-limit\n")
        job.until("warning[requeued]" if _ == 1 else "to continue: ")
        if _ == 1:
            job.until("resumed at step")
    fields = job.wait()
    assert (fields["ExitCode"], fields["Restarts"]) == ("75:0", "1"), job.output


@pytest.mark.parametrize(
    ("spec", "site", "settings"),
    [
        ("ddp", "pbs", ["launcher=ssh"]),
        ("horovod-gloo", "pbs", ["launcher=ssh"]),
        ("ddp", "example", ["launcher=ssh", "remote_shell=srun --nodes=1 --ntasks=1 --overlap --nodelist"]),
        ("horovod-gloo", "example", ["launcher=mpirun"]),
        ("ddp-ranks", "example", ["bind_gpus=true"]),
        ("ddp", "example", ["placement=node-by-node"]),
        ("horovod-gloo", "example", ["placement=node-by-node"]),
    ],
)
def test_what_a_site_chooses_trains_the_same_weights(cluster, tmp_path, config, alone, spec, site, settings):  # noqa: PLR0917 -- fixtures
    job = cluster.submit(rendered(tmp_path, spec, site, *settings), out=tmp_path / "run", **epochs(2, config))
    job.proven(tmp_path / "run", alone, ranks=4)


def test_nothing_is_left_where_ssh_has_started_it(cluster, tmp_path, config):
    out = tmp_path / "run"
    job = cluster.submit(rendered(tmp_path, "ddp", "pbs", "launcher=ssh"), out=out, **epochs(4000, config))
    job.until("samples/s", times=2)
    cluster.run("scancel", "--signal=KILL", "--full", job.number)  # nothing of this side can say goodbye
    job.wait()
    deadline = time.monotonic() + 30
    while any("trainer" in cluster.control("on", node, "ps", "-eo", "args") for node in ("node1", "node2")):
        assert time.monotonic() < deadline, "ranks were left behind"
        time.sleep(0.5)


def test_an_unknown_host_key_is_refused(cluster, tmp_path, config):
    known = cluster.folder / "ssh" / "ssh_known_hosts"
    text = known.read_text()
    try:
        known.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("node2")))
        script = rendered(tmp_path, "ddp", "pbs", "launcher=ssh")
        job = cluster.submit(script, out=tmp_path / "run", **epochs(2, config))
        assert job.wait()["ExitCode"] == "78:0"
    finally:
        known.write_text(text)
    assert OF_SSH in job.output


def test_an_ordinary_user_trains_over_mpi_in_the_image(cluster, users_image, config, alone):
    home = cluster.home
    shutil.copy(config(2), home / "two.toml")
    chdir = (f"--chdir={home}",)
    job = cluster.submit(
        "horovod.job", out=home / "run", sbatch=chdir, SLIPWAY_CONFIG=f"{home}/two.toml", **users_image
    )
    fields, _ = job.proven(home / "run", alone, ranks=4)
    assert fields["UserId"] == "alice(20001)"


def test_a_host_mpi_that_differs_is_told_with_the_way_out(cluster, image, tmp_path):
    # the environment's own mpirun is Open MPI 5, the image's 4
    path = f"{Path(shutil.which('mpirun')).parent}:{image['PATH']}"
    job = cluster.submit("horovod.job", out=tmp_path / "run", **{**image, "PATH": path})
    assert job.wait()["ExitCode"] == "78:0"
    assert_names(job.output, "error[mpi-mismatch]", "Open MPI v4.1.4", "mpirun (Open MPI) 5", "horovod-gloo")


@pytest.mark.parametrize(
    ("script", "name"),
    [
        ("ddp-mpirun.job", "plain_ddp.py"),
        ("ddp.pbs", "plain_ddp.py"),
        *((script, "accelerate_ddp.py") for script in DDP),
        *((script, "lightning_ddp.py") for script in DDP),
        ("horovod-gloo.job", "horovod_torch.py"),
        ("horovod.job", "horovod_torch.py"),
        ("horovod.pbs", "horovod_torch.py"),
    ],
)
def test_a_script_that_knows_nothing_of_this_project_runs_too(cluster, tmp_path, script, name):
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_SCRIPT=str(FOREIGN / name))
    assert job.wait()["JobState"] == "COMPLETED", job.output
    assert "4 ranks, final loss 0.0000" in job.output

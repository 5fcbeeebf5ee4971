"""Horovod, mpirun, ssh and PBS on the cluster: the weights of such jobs, their users, and their errors."""

import shutil
from pathlib import Path

import pytest

from clusters import rendered
from messages import assert_names

pytestmark = pytest.mark.prove

DDP = ["ddp.job", "ddp-ranks.job", "ddp-mpirun.job", "ddp.pbs"]
FOREIGN = Path(__file__).parent / "foreign"
OF_SSH = "Host key verification failed"


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
def test_launcher_and_placement_of_site_train_reference_weights(cluster, tmp_path, config, alone, spec, site, settings):  # noqa: PLR0917 -- fixtures
    job = cluster.submit(rendered(tmp_path, spec, site, *settings), out=tmp_path / "run", SLIPWAY_CONFIG=config(2))
    job.proven(tmp_path / "run", alone, ranks=4)


def test_ssh_ranks_end_when_job_is_killed(cluster, tmp_path, config):
    script = rendered(tmp_path, "ddp", "pbs", "launcher=ssh")
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_CONFIG=config(4000))
    job.until("samples/s", times=2)
    cluster.run("scancel", "--signal=KILL", "--full", job.number)  # the script cannot end the ranks
    assert cluster.left_over(limit=60) == []


def test_ssh_with_unknown_host_key_is_refused(cluster, tmp_path, config):
    known = cluster.folder / "ssh" / "ssh_known_hosts"
    text = known.read_text()
    try:
        known.write_text("".join(line for line in text.splitlines(keepends=True) if not line.startswith("node2")))
        script = rendered(tmp_path, "ddp", "pbs", "launcher=ssh")
        job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_CONFIG=config(2))
        job.ends(ExitCode="78:0")
    finally:
        known.write_text(text)
    assert OF_SSH in job.output


def test_unprivileged_user_trains_over_mpi_in_image(cluster, users_image, config, alone):
    home = cluster.home
    shutil.copy(config(2), home / "two.toml")
    chdir = (f"--chdir={home}",)
    job = cluster.submit(
        "horovod.job", out=home / "run", sbatch=chdir, SLIPWAY_CONFIG=f"{home}/two.toml", **users_image
    )
    fields, _ = job.proven(home / "run", alone, ranks=4)
    assert fields["UserId"] == "alice(20001)"


def test_mpi_mismatch_between_host_and_image_is_refused(cluster, image, tmp_path):
    # the environment's own mpirun is Open MPI 5, the image's 4
    path = f"{Path(shutil.which('mpirun')).parent}:{image['PATH']}"
    job = cluster.submit("horovod.job", out=tmp_path / "run", **{**image, "PATH": path})
    job.ends(ExitCode="78:0")
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
def test_third_party_framework_script_trains_with_four_ranks(cluster, tmp_path, script, name):
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_SCRIPT=str(FOREIGN / name))
    job.ends()
    assert "4 ranks, final loss 0.0000" in job.output

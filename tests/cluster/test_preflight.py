"""What a job script answers on a real cluster before it starts any rank, and what it puts on the nodes' own disks."""

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from readme import SCRIPT


@pytest.fixture
def answer(table):
    """Return a function that waits for a job to be refused, and shows what it said and how soon."""

    def answer(what, job, slug, value):
        fields = job.wait()
        assert (fields["JobState"], fields["ExitCode"]) == ("FAILED", "78:0"), job.output
        said = [line for line in job.output.splitlines() if f"error[{slug}]" in line and value in line]
        assert said, job.output
        table(f"preflight: {what}, after {fields['RunTime']}", [[said[0]]])

    return answer


prove = functools.partial(pytest.param, marks=pytest.mark.prove)  # tests/stubrun has them on one machine


@pytest.mark.parametrize(
    ("what", "env", "slug", "value"),
    [
        prove("no environment", {"SLIPWAY_VENV": "/nowhere"}, "no-environment", "/nowhere/bin/python"),
        prove("no data", {"SLIPWAY_DATA": "/nowhere"}, "no-data", "/nowhere "),
        prove("no configuration", {"SLIPWAY_CONFIG": "/nowhere.toml"}, "no-script", "/nowhere.toml"),
        ("an output in /proc", {"SLIPWAY_RUN_DIR": "/proc/run"}, "cannot-write", "/proc/run"),
        ("no GPU", {"SLIPWAY_DEVICE": "cuda"}, "no-gpu", "SLIPWAY_DEVICE=cpu"),
    ],
)
def test_what_is_wrong_is_answered_before_any_rank_starts(  # noqa: PLR0917 -- fixtures
    cluster, tmp_path, answer, what, env, slug, value
):
    answer(what, cluster.submit("ddp.job", out=tmp_path / "run", **env), slug, value)


def test_a_missing_image_is_answered(cluster, tmp_path, image, answer):
    job = cluster.submit("ddp.job", out=tmp_path / "run", **image | {"SLIPWAY_IMAGE": "/nowhere.sif"})
    answer("a missing image", job, "no-image", "/nowhere.sif")


def test_an_image_without_the_trainer_is_answered(cluster, tmp_path, image, answer):
    (tmp_path / "empty").mkdir()
    hidden = {"APPTAINER_BIND": f"{tmp_path}/empty:/opt/slipway/src"}
    job = cluster.submit("ddp.job", out=tmp_path / "run", **image | hidden)
    answer("an image without the trainer", job, "node-not-ready", "")
    assert "No module named 'trainer'" in job.output


@pytest.mark.prove
def test_a_script_runs_in_an_image_that_has_torch_alone(cluster, tmp_path, image):
    """As an image of NGC or PyTorch: without this project, and without what it needs besides torch."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "my_train.py").write_text(SCRIPT)
    packages = "/opt/venv/lib/python3.11/site-packages"
    hidden = ["/opt/slipway/src", *(f"{packages}/{name}" for name in ("msgspec", "safetensors", "horovod", "tqdm"))]
    env = {"APPTAINER_BIND": ",".join(f"{tmp_path}/empty:{path}" for path in hidden)}
    script = {"SLIPWAY_SCRIPT": str(tmp_path / "my_train.py")}
    job = cluster.submit("ddp.job", out=tmp_path / "run", **image | env, **script)
    assert job.wait()["JobState"] == "COMPLETED", job.output
    assert "4 ranks, loss 0.0" in job.output


def test_a_folder_that_is_not_bound_is_answered(cluster, tmp_path, image, answer):
    with tempfile.TemporaryDirectory(dir="/srv") as data:  # Apptainer binds /tmp by itself
        (tmp_path / "mnist.toml").write_text(f'[data]\ndataset = "mnist"\ndata_dir = "{data}"\n')
        job = cluster.submit("ddp.job", out=tmp_path / "run", SLIPWAY_CONFIG=str(tmp_path / "mnist.toml"), **image)
        answer("a missing bind", job, "data-unreadable", f"--data-dir {data}")


def test_a_head_node_that_only_knows_itself_is_answered(cluster, tmp_path, answer):
    hosts = tmp_path / "hosts"
    others = [line for line in cluster.run("cat", "/etc/hosts").splitlines() if line.split()[1:] != ["node1"]]
    hosts.write_text("\n".join(["127.0.1.1 node1", *others, ""]))
    cluster.control("on", "node1", "mount", "--bind", hosts, "/etc/hosts")
    try:
        job = cluster.submit("ddp.job", out=tmp_path / "run")
        answer("a head node on loopback", job, "no-master-address", "node1 is 127.0.1.1 ")
    finally:
        cluster.control("on", "node1", "umount", "/etc/hosts")


@pytest.mark.prove
def test_a_node_that_does_not_answer_is_answered_within_a_minute(cluster, tmp_path, answer):
    slow = tmp_path / "python"  # a file system that hangs: node2 never gets to the end of this
    slow.write_text(f'#!/bin/sh\n[ "$(hostname)" != node2 ] || sleep 600\nexec {sys.executable} "$@"\n')
    slow.chmod(0o755)
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    slow.rename(venv / "bin" / "python")
    (venv / "bin" / "python3").symlink_to("python")
    job = cluster.submit("ddp.job", out=tmp_path / "run", SLIPWAY_VENV=str(venv))
    answer("a node that hangs", job, "node-not-ready", " 60 s")


@pytest.fixture
def images(tmp_path):
    """Return the settings of a job that trains on 32 images, as a folder, a squashfs image and a tar."""
    data = tmp_path / "images"
    for number in range(32):
        folder = data / ("train" if number < 24 else "val") / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (number, 0, 0)).save(folder / f"{number}.png")
    config = ["[data]", 'dataset = "imagefolder"', "image_size = 16", "[train]", "epochs = 1", "batch_size = 8"]
    (tmp_path / "images.toml").write_text("\n".join(config))
    subprocess.run(["tar", "--create", "--file", "images.tar", "images"], cwd=tmp_path, check=True)
    common = {"SLIPWAY_CONFIG": str(tmp_path / "images.toml"), "SLIPWAY_STAGE": "1"}
    names = {"folder": "images", "squashfs": "images.sqsh", "tar": "images.tar"}
    return {kind: common | {"SLIPWAY_DATA": str(tmp_path / name)} for kind, name in names.items()}


def disks_of(cluster, number):
    """Return what a job has left on the nodes' disks."""
    nodes = ("node1", "node2")
    return [path for node in nodes for path in (cluster.folder / f"tmp.{node}").glob(f"slipway-{number}.*")]


def test_data_are_staged_on_every_node_and_removed(cluster, tmp_path, images):
    found = {}
    for kind, script in (("folder", "ddp.job"), ("tar", "ddp-mpirun.job")):
        run = tmp_path / kind
        job = cluster.submit(script, out=run, **images[kind])
        assert job.wait()["JobState"] == "COMPLETED", job.output
        assert f"/slipway-{job.number}." in (run / "config.toml").read_text()
        assert disks_of(cluster, job.number) == []
        found[kind] = (run / "checkpoints" / "latest" / "model.safetensors").read_bytes()
    assert found["tar"] == found["folder"]


@pytest.mark.parametrize("stage", ["0", "1"])
def test_a_squashfs_image_is_mounted_on_every_node(cluster, tmp_path, image, images, stage):
    apptainer = Path(shutil.which("apptainer", path=image["PATH"]))
    own = apptainer.parents[1] / "libexec" / "apptainer" / "bin"
    mksquashfs = shutil.which("mksquashfs", path=f"{os.environ['PATH']}:{own}")
    words = [mksquashfs, "images", "images.sqsh", "-quiet"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    shutil.rmtree(tmp_path / "images")
    # a container for each rank
    job = cluster.submit("ddp-ranks.job", out=tmp_path / "run", **image | images["squashfs"] | {"SLIPWAY_STAGE": stage})
    assert job.wait()["JobState"] == "COMPLETED", job.output
    assert "/mounted" in (tmp_path / "run" / "config.toml").read_text()
    assert disks_of(cluster, job.number) == []

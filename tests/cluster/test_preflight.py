"""Errors of a job script on a real cluster before it starts ranks, and the files that it stages to local disks."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from PIL import Image

from readme import SCRIPT


def assert_refused(job, slug, value):
    """Wait until the job is refused, and assert that it reported the reason."""
    job.ends(JobState="FAILED", ExitCode="78:0")
    assert any(f"error[{slug}]" in line and value in line for line in job.output.splitlines()), job.output


@pytest.mark.parametrize(
    ("env", "slug", "value"),
    [
        ({"SLIPWAY_RUN_DIR": "/proc/run"}, "cannot-write", "/proc/run"),
        ({"SLIPWAY_DEVICE": "cuda"}, "no-gpu", "SLIPWAY_DEVICE=cpu"),
    ],
    ids=["an output in /proc", "no GPU"],
)
def test_preflight_refuses_bad_settings_before_ranks_start(cluster, tmp_path, env, slug, value):
    assert_refused(cluster.submit("ddp.job", out=tmp_path / "run", **env), slug, value)


def test_missing_image_is_refused(cluster, tmp_path, image):
    job = cluster.submit("ddp.job", out=tmp_path / "run", **image | {"SLIPWAY_IMAGE": "/nowhere.sif"})
    assert_refused(job, "no-image", "/nowhere.sif")


@pytest.mark.prove
def test_user_script_runs_in_image_with_only_torch(cluster, tmp_path, image):
    """Like an image of NGC or PyTorch: without this project and its dependencies besides torch."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "my_train.py").write_text(SCRIPT)
    packages = "/opt/venv/lib/python3.11/site-packages"
    hidden = ["/opt/slipway/src", *(f"{packages}/{name}" for name in ("msgspec", "safetensors", "horovod", "tqdm"))]
    env = {"APPTAINER_BIND": ",".join(f"{tmp_path}/empty:{path}" for path in hidden)}
    script = {"SLIPWAY_SCRIPT": str(tmp_path / "my_train.py")}
    job = cluster.submit("ddp.job", out=tmp_path / "run", **image | env, **script)
    job.ends()
    assert "4 ranks, loss 0.0" in job.output


def test_data_folder_not_bound_into_container_is_refused(cluster, tmp_path, image):
    with tempfile.TemporaryDirectory(dir="/srv") as data:  # Apptainer binds /tmp automatically
        (tmp_path / "mnist.toml").write_text(f'[data]\ndataset = "mnist"\ndata_dir = "{data}"\n')
        job = cluster.submit("ddp.job", out=tmp_path / "run", SLIPWAY_CONFIG=str(tmp_path / "mnist.toml"), **image)
        assert_refused(job, "data-unreadable", f"--data-dir {data}")


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


def test_data_is_staged_on_every_node_and_removed(cluster, tmp_path, images):
    found = {}
    for kind, script in (("folder", "ddp.job"), ("tar", "ddp-mpirun.job")):
        run = tmp_path / kind
        job = cluster.submit(script, out=run, **images[kind])
        job.ends()
        assert f"/slipway-{job.number}." in (run / "config.toml").read_text()
        assert cluster.local_folders(job) == []
        found[kind] = (run / "checkpoints" / "latest" / "model.safetensors").read_bytes()
    assert found["tar"] == found["folder"]


@pytest.mark.parametrize("stage", ["0", "1"])
def test_squashfs_data_image_is_mounted_on_every_node(cluster, tmp_path, image, images, stage):
    apptainer = Path(shutil.which("apptainer", path=image["PATH"]))
    own = apptainer.parents[1] / "libexec" / "apptainer" / "bin"
    mksquashfs = shutil.which("mksquashfs", path=f"{os.environ['PATH']}:{own}")
    words = [mksquashfs, "images", "images.sqsh", "-quiet"]
    subprocess.run(words, cwd=tmp_path, check=True, capture_output=True)
    shutil.rmtree(tmp_path / "images")
    # one container per rank
    job = cluster.submit("ddp-ranks.job", out=tmp_path / "run", **image | images["squashfs"] | {"SLIPWAY_STAGE": stage})
    job.ends()
    assert "/mounted" in (tmp_path / "run" / "config.toml").read_text()
    assert cluster.local_folders(job) == []

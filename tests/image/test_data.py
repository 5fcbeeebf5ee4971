"""A single file instead of many: a ZIP archive, a squashfs image and a tar as data of a job, in the real image."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from messages import assert_error, slugs
from opened import counted
from support import ROOT, status

FLAGS = ("--arch", "mlp", "--batch-size", "16", "--epochs", "2", "--no-figures")
IMAGES = 84
"""Of 21 classes."""


@pytest.fixture(scope="module")
def mksquashfs(apptainer) -> str:
    """Return the path of mksquashfs: the machine's, or Apptainer's own."""
    own = Path(apptainer).parents[1] / "libexec" / "apptainer" / "bin"
    found = shutil.which("mksquashfs", path=f"{os.environ['PATH']}:{own}")
    assert found, f"no mksquashfs on PATH or in {own}: apt-get install squashfs-tools"
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory, mksquashfs) -> dict[str, Path]:
    """Return the same data as a folder, and in files of each kind, each on a separate "shared disk"."""
    disk = tmp_path_factory.mktemp("shared")
    folder = disk / "folder" / "aerial"
    words = [sys.executable, "-m", "trainer", "make-data", "aerial", folder, "--per-class", str(IMAGES // 21)]
    subprocess.run(words, check=True, capture_output=True)
    found = {"folder": folder}
    for kind, name in (
        ("zip", "aerial.zip"),
        ("squashfs", "aerial.sqsh"),
        ("tar", "aerial.tar"),
        ("tar.gz", "aerial.tgz"),
    ):
        (disk / kind).mkdir()
        found[kind] = disk / kind / name
    # as in docs/howto/data.md
    subprocess.run([sys.executable, "-m", "trainer", "pack", folder, found["zip"]], check=True, capture_output=True)
    subprocess.run([mksquashfs, folder, found["squashfs"], "-quiet"], check=True, capture_output=True)
    for kind in ("tar", "tar.gz"):
        words = ["tar", "--create", "--file", found[kind], "--auto-compress", "--directory", folder.parent, "aerial"]
        subprocess.run(words, check=True)
    return found


class Job:
    """ddp.sh with two ranks in the image, on its own local disk."""

    def __init__(self, folder: Path, disk: Path, apptainer: str, image: Path) -> None:
        self.folder = folder
        self.disk = disk
        self.environment = {
            "HOME": str(folder),
            "PATH": f"{Path(apptainer).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
            "USE_CONTAINER": "1",
            "SLIPWAY_IMAGE": str(image),
            "SLIPWAY_CONFIG": str(ROOT / "configs" / "aerial.toml"),
            "SLIPWAY_LOCAL_DISK": str(self.disk),
            "SLIPWAY_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
        }

    def run(self, name: str, data: Path, **env: str) -> Path:
        """Train, and return the run folder."""
        done = self.start(name, data, **env)
        run = self.folder / name
        assert done.returncode == 0, done.stderr
        assert status(run)["state"] == "done"
        assert list(self.disk.iterdir()) == []
        return run

    def start(self, name: str, data: Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the script in the run folder of that name."""
        run = self.folder / name
        return subprocess.run(
            ["timeout", "240", "bash", ROOT / "jobscripts" / "ddp.sh", *FLAGS],
            cwd=self.folder,
            env=self.environment | {"SLIPWAY_DATA": str(data), "SLIPWAY_RUN_DIR": str(run), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,  # it has ended its ranks by then
            check=False,
        )


@pytest.fixture
def job(tmp_path, apptainer) -> Iterator[Job]:
    image = Path(os.environ.get("SLIPWAY_TEST_IMAGE") or ROOT / "dist" / "slipway-cpu.sif")
    assert image.exists(), f"no {image}: `make image` builds it"
    # A short path: data loaders have sockets in TMPDIR, and unix(7) ends their names at 107 bytes.
    with tempfile.TemporaryDirectory(prefix="slipway-", dir="/var/tmp") as disk:
        yield Job(tmp_path, Path(disk), apptainer, image)


@pytest.mark.prove
def test_packed_data_gives_same_weights_and_opens_one_file(job, data, table):
    ways = {
        "folder": {},
        "folder, staged": {"SLIPWAY_STAGE": "1"},
        "zip": {},
        "zip, staged": {"SLIPWAY_STAGE": "1"},
        "squashfs": {},
        "squashfs, staged": {"SLIPWAY_STAGE": "1"},
        "tar, staged": {"SLIPWAY_STAGE": "1"},
        "tar.gz, staged": {"SLIPWAY_STAGE": "1"},
    }
    weights, rows = {}, [("data", "files opened on the shared disk", "opens")]
    for number, (way, settings) in enumerate(ways.items()):
        path = data[way.partition(",")[0]]
        with counted(path.parent) as opened:
            run = job.run(f"run{number}", path, **settings)
        files = {"model": run / "checkpoints" / "latest" / "model.safetensors"}
        weights[way] = {name: file.read_bytes() for name, file in files.items()}
        rows.append((way, len(opened), sum(opened.values())))
        if path.is_dir():
            assert len(opened) == IMAGES
        else:
            assert set(opened) == {path.name}, opened
    table("files that 2 ranks and 2 epochs open", rows)
    assert [way for way, found in weights.items() if found != weights["folder"]] == []


@pytest.mark.parametrize("harm", ["cut", "overwritten"])
def test_damaged_squashfs_image_ends_job_before_training(job, data, tmp_path, harm):
    whole = data["squashfs"].read_bytes()
    path = tmp_path / "data.sqsh"
    path.write_bytes(whole[:5000] if harm == "cut" else whole[:96] + bytes(range(256)) * (len(whole) // 256))
    done = job.start("run", path)
    assert done.returncode == 78
    if harm == "cut":
        assert_error(done.stderr, "bad-data-file", path, " 5000 ")
    else:
        assert slugs(done.stderr)[-1:] == ["node-not-ready"]  # after the node's message
    assert list(job.disk.iterdir()) == []

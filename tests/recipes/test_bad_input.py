"""What is wrong is told in one line, before anything is built: what, where, what to do."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support import ROOT


def answer(*words: str | Path, **env: str) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert not list((ROOT / "dist").glob("*.part")), "a half-written image is left behind"
    *before, line = done.stderr.splitlines()
    assert not [other for other in before if not other.startswith("ERROR: ")], before  # pip's own words may come first
    return line


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"VARIANT": "rocm"}, "image: no variant rocm: there are cpu cuda"),
        ({"ROUTES": "podman"}, "image: ROUTES: no route podman; there are docker and apptainer"),
        (
            {"BUILD_ARGS": "TORHC=1"},
            "image: BUILD_ARGS: nothing uses TORHC; there are BASE_IMAGE CUDA_VERSION HOROVOD_",
        ),
    ],
)
def test_settings_of_make_image(env, expected):
    assert answer("build/image", **env).startswith(expected)


def test_no_space():
    script = "mount -t tmpfs -o size=8m none /mnt && SCRATCH=/mnt/scratch exec build/image"
    line = answer("unshare", "--mount", "--map-root-user", "sh", "-c", script)
    assert line.startswith("image: /mnt/scratch has 8 MB free and ")
    assert line.endswith("MB are needed: make room, or set SCRATCH to a folder elsewhere")


def test_an_archive_that_is_not_there():
    line = answer("build/base", "docker-archive:/nowhere/base.tar", "")
    assert line == "build/base: no /nowhere/base.tar: BASE_IMAGE names an archive that is not there"


def test_a_pin_that_does_not_exist(tmp_path):
    shutil.copytree(ROOT / "containers", tmp_path / "containers")
    pins = tmp_path / "containers" / "pins" / "cpu.env"
    pins.write_text(pins.read_text().replace("TORCH_VERSION=2.", "TORCH_VERSION=99."))
    line = answer(tmp_path / "containers/install/20-torch.sh", VARIANT="cpu", TORCH_INDEX="file:///nowhere")
    assert line.startswith("20-torch: no torch 99.")


def test_run_without_an_image():
    assert answer("build/run", "none.sif", "true") == "run: no none.sif: `make image` builds it"


def test_pull_of_something_else():
    assert answer("build/pull", "pytorch").startswith("pull: IMAGE=docker://... names no image")

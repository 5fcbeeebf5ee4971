"""Fixtures: images of one variant, built by `make image`, and the users who run them: root, or an ordinary user."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import ROOT, pins

NOBODY = 65534
VARIANT = Path(os.environ.get("SLIPWAY_TEST_IMAGE", "slipway-cpu.sif")).stem.removeprefix("slipway-")
IMAGES = (f"slipway-{VARIANT}.sif", f"slipway-{VARIANT}-docker.sif")


@dataclass(frozen=True)
class Runner:
    """An apptainer, an image that it can run, and the command line prefix of both."""

    apptainer: str
    image: str
    home: Path
    prefix: tuple[str, ...] = ()

    def words(self, action: str, *rest: str) -> list[str]:
        return [*self.prefix, self.apptainer, action, *rest]

    def environment(self) -> dict[str, str]:
        """Return the environment of a fresh login, in particular without the test's own Python."""
        return {"HOME": str(self.home), "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

    def run(self, action: str, *rest: str, env: dict[str, str] | None = None, limit: float = 240):
        return subprocess.run(
            self.words(action, *rest),
            cwd=self.home,
            env=self.environment() | (env or {}),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )


@pytest.fixture(scope="session")
def apptainer() -> str:
    return subprocess.check_output([ROOT / "build" / "apptainer"], text=True).strip()


def built(name: str) -> Path:
    path = ROOT / "dist" / name
    assert path.exists(), f"no {path}: `make image VARIANT={VARIANT}` builds it"
    return path


@pytest.fixture(scope="session")
def variant() -> str:
    """Return the images' variant: SLIPWAY_TEST_IMAGE, or cpu."""
    return VARIANT


@pytest.fixture(scope="session")
def pinned(variant) -> dict[str, str]:
    """Return the pins that the images were made from."""
    return pins(variant)


@pytest.fixture(scope="session")
def scratch() -> Iterator[Path]:
    """Yield a folder that any user may enter and write to: pytest's own are only for root."""
    with tempfile.TemporaryDirectory(prefix="slipway-image.", dir="/var/tmp") as name:
        path = Path(name)
        path.chmod(0o1777)  # like /tmp: job scripts refuse a folder in which others can rename theirs
        yield path


@pytest.fixture(params=IMAGES)
def root(request, apptainer, tmp_path) -> Runner:
    return Runner(apptainer, str(built(request.param)), tmp_path)


@pytest.fixture(scope="session")
def user(apptainer, scratch) -> Runner:
    """Return an ordinary user of one of the images, who installed Apptainer with build/apptainer."""
    home = scratch / "home"
    tools = home / "build"
    tools.mkdir(parents=True)
    for script in ("apptainer", "apptainer-wrapper", "debs"):
        shutil.copy(ROOT / "build" / script, tools)
    prefix = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    # Mounting a SIF needs /dev/fuse, which some machines reserve for root; a folder always works.
    folder = home / "image"
    subprocess.run([apptainer, "build", "--sandbox", folder, built(IMAGES[0])], check=True, capture_output=True)
    subprocess.check_call(["chown", "-R", f"{NOBODY}:{NOBODY}", home])
    login = {"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "SLIPWAY_CACHE": str(home / "cache")}
    theirs = subprocess.check_output([*prefix, tools / "apptainer"], text=True, env=login, cwd=home).strip()
    return Runner(theirs, str(folder), home, prefix)


@pytest.fixture(params=["root", pytest.param("root, by Dockerfile", marks=pytest.mark.prove), "user"])
def anyone(request, apptainer, tmp_path) -> Runner:
    """Return root with either image (`make test` uses one), then the user."""
    if request.param == "user":
        return request.getfixturevalue("user")
    return Runner(apptainer, str(built(IMAGES[request.param != "root"])), tmp_path)

"""Registries, unmodified names included: a real one on loopback, which registries.conf names as docker.io's mirror."""

import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import ROOT

TAG = "docker.io/library/debian:bookworm-20250520-slim"
REGISTRY_CONFIG = """
version: 0.1
log: {{level: warn}}
storage: {{filesystem: {{rootdirectory: {folder}/registry}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""
MIRROR = """
[[registry]]
prefix = "docker.io"
location = "docker.io"
[[registry.mirror]]
location = "127.0.0.1:{port}"
insecure = true
"""


@dataclass(frozen=True)
class Registry:
    port: int
    env: dict[str, str]

    def run(self, *words: str | Path, tree: Path = ROOT) -> subprocess.CompletedProcess:
        return subprocess.run(words, cwd=tree, env=self.env, capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def registry(tmp_path_factory) -> Iterator[Registry]:
    """Yield a registry that holds the base, and a home folder whose registries.conf knows it."""
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config.yml").write_text(REGISTRY_CONFIG.format(folder=folder, port=port))
    conf = folder / ".config" / "containers" / "registries.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(MIRROR.format(port=port))
    cache = os.environ.get("SLIPWAY_CACHE", str(Path.home() / ".cache" / "slipway"))
    # A scratch folder of its own, or buildah would find the base among its own images and never ask.
    ours = Registry(
        port, os.environ | {"HOME": str(folder), "SLIPWAY_CACHE": cache, "SCRATCH": str(folder / "scratch")}
    )
    base = subprocess.check_output([ROOT / "build/base", "localhost/nowhere/none:1", "bookworm"], text=True).strip()
    root = subprocess.check_output([ROOT / "build/debs", "docker-registry"], text=True, env=ours.env).strip()
    with subprocess.Popen([f"{root}/usr/bin/docker-registry", "serve", folder / "config.yml"]) as server:
        try:
            _wait_for(port)
            target = f"docker://127.0.0.1:{port}/{TAG.removeprefix('docker.io/')}"
            subprocess.check_call([ROOT / "build/buildah", "push", "--quiet", "--tls-verify=false", base, target])
            yield ours
        finally:
            server.terminate()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the registry does not listen")


def test_the_recipes_base_is_pulled_by_its_own_name(registry):
    done = registry.run(ROOT / "build/base", TAG, "")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9a-f]{64}\n", done.stdout)


def test_a_base_that_is_not_there_is_told_in_one_line(registry):
    done = registry.run(ROOT / "build/base", "docker.io/library/debian:never", "")
    assert done.returncode == 1
    assert re.fullmatch(r"build/base: no docker.io/library/debian:never: .* reachable from here\?\)\n", done.stderr)


@pytest.fixture
def tree(tmp_path) -> Path:
    """Return a copy of what the scripts write to."""
    for name in ("build", "containers"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("Dockerfile", "apptainer.def"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def test_pins_writes_the_digest_of_the_tag(registry, tree):
    done = registry.run(tree / "build/pins", tree=tree)
    assert done.returncode == 0, done.stderr
    places = ["Dockerfile", "apptainer.def", "containers/pins/cpu.env", "containers/pins/cuda.env"]
    found = [
        re.search(r"^(?:ARG | *)BASE_IMAGE=(.*)$", (tree / place).read_text(), re.MULTILINE)[1] for place in places
    ]
    assert re.fullmatch(r"docker.io/library/debian@sha256:[0-9a-f]{64}", found[0])
    assert set(found) == {found[0]}
    again = registry.run(ROOT / "build/base", found[0], "")
    assert again.returncode == 0, again.stderr


def test_pins_changes_nothing_without_an_answer(tree, tmp_path):
    before = (tree / "Dockerfile").read_text()
    env = os.environ | {"SCRATCH": str(tmp_path / "scratch")}
    done = subprocess.run([tree / "build/pins"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == f"pins: no registry answers for {TAG}: nothing changed\n"
    assert (tree / "Dockerfile").read_text() == before


def test_pull_makes_a_sif_of_a_published_image(registry, tree):
    done = registry.run(tree / "build/pull", f"docker://{TAG.removeprefix('docker.io/library/')}", tree=tree)
    assert done.returncode == 0, done.stderr
    assert (tree / "dist" / "debian-bookworm-20250520-slim.sif").stat().st_size > 1e7


def test_pull_leaves_nothing_where_there_is_no_image(registry, tree):
    done = registry.run(tree / "build/pull", "docker://debian:never", tree=tree)
    assert done.returncode != 0
    assert "no dist/debian-never.sif: see the lines above" in done.stderr
    assert not list((tree / "dist").iterdir())

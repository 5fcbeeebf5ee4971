"""Pulls by registry and by unmodified names: a real registry on loopback, docker.io's mirror in registries.conf."""

import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from messages import assert_error
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

    def run(self, *words: str | Path, tree: Path = ROOT, limit: float = 280) -> subprocess.CompletedProcess:
        return subprocess.run(words, cwd=tree, env=self.env, capture_output=True, text=True, timeout=limit, check=False)


@pytest.fixture(scope="module")
def registry(tmp_path_factory, base) -> Iterator[Registry]:
    """Yield a registry that holds the base, and a home folder whose registries.conf lists it."""
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "config.yml").write_text(REGISTRY_CONFIG.format(folder=folder, port=port))
    conf = folder / ".config" / "containers" / "registries.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(MIRROR.format(port=port))
    caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    cache = os.environ.get("SLIPWAY_CACHE", str(caches / "slipway"))
    # A separate scratch folder, or buildah would find the base among its own images and never query the registry.
    ours = Registry(
        port, os.environ | {"HOME": str(folder), "SLIPWAY_CACHE": cache, "SCRATCH": str(folder / "scratch")}
    )
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


def test_base_image_is_pulled_by_its_tag(registry):
    done = registry.run(ROOT / "build/base", TAG, "")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"[0-9a-f]{64}\n", done.stdout)


def test_missing_base_tag_gives_one_line_error(registry):
    done = registry.run(ROOT / "build/base", "docker.io/library/debian:never", "")
    assert done.returncode == 1
    assert re.fullmatch(r"build/base: .*docker.io/library/debian:never: .*\n", done.stderr)


def test_pins_writes_digest_of_base_tag(registry, tree):
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


def test_pins_changes_nothing_if_registry_is_unreachable(tree, tmp_path):
    before = (tree / "Dockerfile").read_text()
    env = os.environ | {"SCRATCH": str(tmp_path / "scratch")}
    done = subprocess.run([tree / "build/pins"], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(rf"pins: .* {TAG}.*\n", done.stderr)
    assert (tree / "Dockerfile").read_text() == before


@pytest.fixture(scope="module")
def machine() -> tuple[list[str], list[str]]:
    """Return how pip reaches packages here: KEY=VALUE words, certificates bound in /mnt, and local folders."""
    settings = subprocess.check_output([ROOT / "build/pip-config", "settings"], text=True).splitlines()
    words = [line for line in settings if re.match("PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS)=", line)]
    folders = subprocess.check_output([ROOT / "build/pip-config", "folders"], text=True).split()
    return [*words, "PIP_CERT=/mnt/ca-certificates.crt"], folders


def test_readme_commands_build_image_with_stub_install_scripts(registry, apptainer, stubs):
    """Only the README's commands, with install scripts that do nothing."""
    done = registry.run(ROOT / "build/buildah", "bud", "--tag", "slipway", ".", tree=stubs)
    assert done.returncode == 0, done.stderr
    done = registry.run(apptainer, "build", "slipway.sif", "apptainer.def", tree=stubs)
    assert done.returncode == 0, done.stderr
    labels = registry.run(apptainer, "inspect", "--labels", stubs / "slipway.sif").stdout
    assert "slipway.variant: cuda" in labels


@pytest.mark.prove
@pytest.mark.parametrize("builder", ["docker", "apptainer"])
def test_readme_command_builds_complete_image(registry, apptainer, machine, tree, builder):
    words, folders = machine
    wheels = f"{registry.env['SLIPWAY_CACHE']}/image"
    binds = [f"{folder}:{folder}:ro" for folder in folders] + [f"{wheels}:/mnt:ro"]
    arguments = [word for setting in ["VARIANT=cpu", *words] for word in ("--build-arg", setting)]
    if builder == "docker":
        volumes = [word for bind in binds for word in ("--volume", bind)]
        command = [ROOT / "build/buildah", "bud", "--network=host", *volumes, *arguments, "--tag", "slipway", "."]
    else:
        targets = ["--build-arg", f"BIND_TARGETS={' '.join(folders)}"]
        command = [apptainer, "build", "--bind", ",".join(binds), *arguments, *targets, "slipway.sif", "apptainer.def"]
    done = registry.run(*command, tree=tree, limit=1100)
    assert done.returncode == 0, done.stderr[-2000:]
    if builder == "apptainer":
        assert re.search(r"(?m)^smoke: .*\b2 ranks\b", done.stdout + done.stderr)


def test_pull_converts_published_image_to_sif(registry, tree):
    done = registry.run("make", "pull", f"IMAGE=docker://{TAG.removeprefix('docker.io/library/')}", tree=tree)
    assert done.returncode == 0, done.stderr
    assert (tree / "dist" / "debian-bookworm-20250520-slim.sif").stat().st_size > 1e7


def test_pull_of_missing_image_leaves_no_files(registry, tree):
    done = registry.run(tree / "build/pull", "docker://debian:never", tree=tree)
    assert done.returncode == 1
    assert re.fullmatch(r"pull: .*dist/debian-never.sif: .*manifest unknown.*\n", done.stderr)
    assert not list((tree / "dist").iterdir())


@pytest.mark.prove
def test_pulled_plain_torch_image_runs_user_script_only(registry, apptainer, machine, base, tree):
    """A user script runs in it; the trainer names the missing packages."""
    words, folders = machine
    steps = [
        "apt-get -qq update && apt-get -qq install --no-install-recommends python3-venv >/dev/null",
        "python3 -m venv /venv && /venv/bin/pip install -qq torch===2.13.0+cpu",
    ]
    buildah = ROOT / "build/buildah"
    container = subprocess.check_output([buildah, "from", base], text=True).strip()
    volumes = [word for folder in folders for word in ("--volume", f"{folder}:{folder}:ro")]
    certificates = ["--volume", "/etc/ssl/certs/ca-certificates.crt:/mnt/ca-certificates.crt:ro"]
    environment = [word for setting in words for word in ("--env", setting)]
    run = [buildah, "run", "--network=host", *volumes, *certificates, *environment, container, "--"]
    subprocess.check_call([*run, "bash", "-ec", "\n".join(steps)])
    subprocess.check_call([buildah, "config", "--env", "PATH=/venv/bin:/usr/bin:/bin", container])
    subprocess.check_call([buildah, "commit", "--quiet", "--rm", container, "localhost/plain-torch"])
    target = f"docker://127.0.0.1:{registry.port}/pytorch/pytorch:2.13.0"
    subprocess.check_call([buildah, "push", "--quiet", "--tls-verify=false", "localhost/plain-torch", target])

    done = registry.run("make", "pull", "IMAGE=docker://pytorch/pytorch:2.13.0", tree=tree, limit=600)
    assert done.returncode == 0, done.stderr
    inside = [
        apptainer,
        "exec",
        "--bind",
        tree,
        "--pwd",
        tree,
        "--env",
        f"PYTHONPATH={tree}/src",
        "dist/pytorch-2.13.0.sif",
    ]
    launch = ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
    script = registry.run(*inside, *launch, "containers/allreduce.py", tree=tree)
    assert re.search(r"\b2 ranks\b", script.stdout), script.stderr
    ours = registry.run(*inside, "python3", "-m", "trainer.launch.preflight", tree=tree)
    assert ours.returncode == 78
    assert_error(ours.stderr, "missing-package", "/venv/bin/python3", "numpy", "tqdm")

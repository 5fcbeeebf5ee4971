"""Fixtures: one cluster for all tests of a pytest-xdist worker; several run side by side."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import CONFIG, Cluster, OpenPbs, started
from support import ROOT, weights


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    yield from started(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def cluster_of_four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of two nodes with four GPUs each, for two ranks of two GPUs per node."""
    yield from started(tmp_path_factory.getbasetemp(), gpus=4)


@pytest.fixture(scope="module")
def cluster_with_spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster of three nodes."""
    yield from started(tmp_path_factory.getbasetemp(), nodes=3)


@pytest.fixture(scope="module")
def cluster_with_memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Return a cluster that allocates memory to jobs and job steps."""
    yield from started(tmp_path_factory.getbasetemp(), select="CR_Core_Memory")


@pytest.fixture(autouse=True)
def nodes_are_left_free(request: pytest.FixtureRequest) -> Iterator[None]:
    """Cancel the jobs that a failed test left: they would occupy the nodes in later tests."""
    yield
    for name in {"cluster", "cluster_of_four", "cluster_with_spare", "cluster_with_memory"} & {*request.fixturenames}:
        request.getfixturevalue(name).cancel_jobs()


@pytest.fixture(scope="session")
def openpbs_prefix() -> str:
    """Return the folder of an OpenPBS, compiled from OPENPBS_SOURCE if it is set, or else from the cache."""
    wanted = bool(os.environ.get("OPENPBS_SOURCE"))
    done = subprocess.run(
        [ROOT / "build" / "openpbs", *([] if wanted else ["--built"])], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 and not wanted:
        pytest.skip(f"no OpenPBS: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="session")
def openpbs(cluster: Cluster, openpbs_prefix: str) -> OpenPbs:
    """Return an OpenPBS on the cluster's nodes, with which it ends."""
    return OpenPbs(cluster, openpbs_prefix)


@pytest.fixture
def users_folder(cluster: Cluster, request: pytest.FixtureRequest) -> Path:
    """Return a folder of alice on a disk that all nodes share."""
    folder = cluster.home / re.sub(r"\W+", "-", request.node.name).strip("-")
    folder.mkdir()
    os.chown(folder, 20001, 20001)
    return folder


@pytest.fixture(scope="session")
def image() -> dict[str, str]:
    """Return the settings that run a job in the CPU image of `make image`, with this checkout's sources.

    A skip without one: building it takes minutes and is the image tests' business.
    """
    path = Path(os.environ.get("SLIPWAY_TEST_IMAGE", ROOT / "dist" / "slipway-cpu.sif"))
    if not path.exists():
        pytest.skip(f"no image {path}: `make image` builds it")
    apptainer = subprocess.run(
        [ROOT / "build" / "apptainer"], check=True, capture_output=True, text=True
    ).stdout.strip()
    return {
        "USE_CONTAINER": "1",
        "SLIPWAY_IMAGE": str(path),
        "PATH": f"{Path(apptainer).parent}:/usr/local/bin:/usr/bin:/bin",  # excludes the environment's mpirun
        "APPTAINER_BIND": f"{ROOT}/src:/opt/slipway/src",
    }


@pytest.fixture(scope="session")
def users_image(cluster: Cluster, image: dict[str, str]) -> dict[str, str]:
    """Return the same for alice, who has only a shell: her own Apptainer, and the image as a folder."""
    home, login = cluster.home, {"SLIPWAY_CACHE": str(cluster.home / "cache"), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    root_apptainer = shutil.which("apptainer", path=image["PATH"])
    subprocess.run(
        [root_apptainer, "build", "--sandbox", home / "image", image["SLIPWAY_IMAGE"]], check=True, capture_output=True
    )
    for folder in ("src", "configs", "jobscripts"):
        shutil.copytree(ROOT / folder, home / folder)
    apptainer = subprocess.check_output([ROOT / "build" / "apptainer"], text=True, env=login).strip()
    subprocess.check_call(["chown", "--recursive", "20001:20001", home])
    return {
        "USE_CONTAINER": "1",
        "SLIPWAY_IMAGE": str(home / "image"),
        "PATH": f"{Path(apptainer).parent}:{login['PATH']}",
        "APPTAINER_BIND": f"{home}/src:/opt/slipway/src",
        "CLUSTER_AS": "alice",
    }


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """Return a function that writes a configuration of some epochs, without dropout and batch norm."""
    folder = tmp_path_factory.mktemp("configs")

    def config(epochs):
        path = folder / f"{epochs}.toml"
        path.write_text(CONFIG.format(epochs=epochs))
        return str(path)

    return config


@pytest.fixture(scope="session")
def alone(tmp_path_factory, config):
    """Return the weights after two epochs in one process, started manually."""
    out = tmp_path_factory.mktemp("alone") / "run"
    words = [sys.executable, "-m", "trainer", config(2), "--output-dir", out, "--device", "cpu", "--threads", "1"]
    subprocess.run(words, check=True, capture_output=True)
    return weights(out / "checkpoints" / "latest")

"""One cluster for all tests of this folder, which leaves no process even where the test run is killed."""

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = Path(__file__).parent / "cluster"
TOOLS = ("slurmctld", "slurmd", "munged", "nsenter", "unshare", "ip")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"}

CONFIG = """
[data]
dataset = "digits"
crop_padding = 1
[model]
arch = "mlp"
[optim]
optimizer = "adamw"
[train]
epochs = {epochs}
batch_size = 64
[run]
log_interval = 10
"""


class Job:
    """One job of the cluster."""

    def __init__(self, cluster: "Cluster", number: str, log: Path) -> None:
        self.cluster, self.number, self.log = cluster, number, log

    @property
    def fields(self) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.cluster.run("scontrol", "show", "job", self.number)))

    @property
    def state(self) -> str:
        return self.fields["JobState"]

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def until(self, text: str, *, times: int = 1, limit: float = 120) -> None:
        """Wait until the job has said ``text`` so often."""
        deadline = time.monotonic() + limit
        while self.output.count(text) < times:
            assert self.state not in ENDED, f"ended before {text!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {text!r} within {limit} s:\n{self.output}"
            time.sleep(0.2)

    def wait(self, limit: float = 180) -> dict[str, str]:
        """Wait for the job's end and return what Slurm knows of it."""
        deadline = time.monotonic() + limit
        while (fields := self.fields)["JobState"] not in ENDED:
            assert time.monotonic() < deadline, f"{fields['JobState']} after {limit} s:\n{self.output}"
            time.sleep(0.3)
        return fields


class Cluster:
    """A head and two nodes, in namespaces."""

    def __init__(self, folder: Path, shared: Path) -> None:
        self.folder = folder
        self.env = os.environ | {"CLUSTER": str(folder), "CLUSTER_SHARED": f"{shared}:{ROOT}"}
        # The environment of `make test` is not the one that a user submits from.
        for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
            self.env.pop(name, None)
        self.lease = (folder / "lease").open("w")
        fcntl.flock(self.lease, fcntl.LOCK_EX)
        self.control("up")

    def control(self, *words: str, **env: str) -> str:
        done = subprocess.run(
            [CLUSTER, *words],
            cwd=ROOT,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def run(self, *words: str, **env: str) -> str:
        return self.control("run", *words, **env)

    def submit(self, script: str, *arguments: str, out: Path, sbatch: tuple[str, ...] = (), **env: str) -> Job:
        """Submit a committed script as it is, to compute on CPUs into the run folder ``out``."""
        log = out.with_name(f"{out.name}.log")
        fixed = {"DEVICE": "cpu", "OMP_NUM_THREADS": "1", "USE_CONTAINER": "0", "VENV": sys.prefix, "RUN_DIR": str(out)}
        words = ["sbatch", "--parsable", f"--output={log}", *sbatch, f"jobscripts/{script}", *arguments]
        return self.job(self.run(*words, **(fixed | env)).strip(), log)

    def job(self, number: str, log: Path) -> Job:
        """Return the job of that number, which writes to ``log``."""
        return Job(self, number, log)

    def close(self) -> None:
        self.control("down")
        self.lease.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        pytest.skip(f"no {', '.join(missing)}: apt-get install slurm-wlm munge iproute2")
    if os.geteuid() != 0:
        pytest.skip("only root may make the namespaces of the cluster's nodes")
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), tmp_path_factory.getbasetemp())
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def image() -> dict[str, str]:
    """Return the settings that run a job in the CPU image of `make image`, with the sources of this checkout.

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
        "IMAGE": str(path),
        "PATH": f"{Path(apptainer).parent}:{os.environ['PATH']}",
        "APPTAINER_BIND": f"{ROOT}/src:/opt/slipway/src",
    }


@pytest.fixture(scope="session")
def config(tmp_path_factory):
    """Return a function that writes a configuration of so many epochs, without dropout and batch norm."""
    folder = tmp_path_factory.mktemp("configs")

    def config(epochs):
        path = folder / f"{epochs}.toml"
        path.write_text(CONFIG.format(epochs=epochs))
        return str(path)

    return config

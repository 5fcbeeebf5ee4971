"""Several ranks: in one container, or under the host's mpirun with a container per rank, both with Open MPI 4.1."""

import itertools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from support import ROOT

DIGITS = ROOT / "configs" / "digits.toml"
MPIRUN = ["-np", "2", "--oversubscribe", "--bind-to", "none"]
AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

# A large message is the first to hang if ranks cannot read each other's memory. The size: ranks that do not find
# their launcher all end well, as rank 0 of 1.
ALLREDUCE = """
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.full((1 << 22,), float(hvd.rank() + 1)), op=hvd.Sum)
print(f"rank {hvd.rank()} of {hvd.size()}: {total[0]:g}")
assert torch.all(total == 3)
"""


@pytest.fixture(scope="session")
def mpirun(scratch) -> tuple[dict[str, str], str]:
    """Return the variables and the path of Debian's mpirun, unpacked if this machine lacks it."""
    system = Path("/usr/bin/mpirun.openmpi")
    if system.exists():
        return {}, str(system)
    env = os.environ | {"SLIPWAY_CACHE": str(scratch / "cache")}
    folder = subprocess.check_output([ROOT / "build" / "debs", "openmpi-bin"], text=True, env=env).strip()
    subprocess.check_call(["chmod", "-R", "a+rX", scratch / "cache"])
    return {"OPAL_PREFIX": f"{folder}/usr"}, f"{folder}/usr/bin/mpirun.openmpi"


def outside(anyone, mpirun, *payload: str, binds: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """Run ``payload`` as two ranks of the host's mpirun, each in its own container."""
    variables, program = mpirun
    # Each rank of an ordinary user gets its own user namespace unless they share one.
    shared = ["--sharens"] if anyone.prefix else []
    # The host's OPAL_PREFIX means nothing inside.
    ranks = ["env", "--unset=OPAL_PREFIX", anyone.apptainer, "exec", *shared, *binds, anyone.image, *payload]
    return subprocess.run(
        [*anyone.prefix, program, *MPIRUN, *ranks],
        cwd=anyone.home,
        env=anyone.environment() | variables | AS_ROOT | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_ranks_in_separate_containers_form_one_world(anyone, mpirun):
    done = outside(anyone, mpirun, "python", "-c", ALLREDUCE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2: 3", "rank 1 of 2: 3"]


@pytest.fixture
def job(anyone, request) -> Path:
    """Return a job folder that holds a configuration, writable for the user who runs the image."""
    folder = anyone.home / re.sub(r"\W", "-", request.node.name)
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "digits.toml").write_bytes(DIGITS.read_bytes())
    return folder


def trainer(backend: str, job: Path) -> list[str]:
    words = ["-m", "trainer", "--backend", backend, f"{job}/digits.toml", "--epochs", "1", "--output-dir", f"{job}/run"]
    return words if backend == "ddp" else ["python", *words]


def trained(job: Path, done: subprocess.CompletedProcess) -> None:
    """Assert that two ranks have trained together."""
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((job / "run" / "status.json").read_text())["state"] == "done"
    assert json.loads((job / "run" / "run.json").read_text())["world_size"] == 2


LAUNCHERS = ("torchrun", "horovodrun --gloo", "mpirun")
SHORT = {("user", "torchrun"), ("root", "horovodrun --gloo"), ("user", "mpirun")}
"""Pairs that `make test` runs; `make prove` runs the product."""


def cases():
    for case in itertools.product(("root", "root, by Dockerfile", "user"), LAUNCHERS):
        yield pytest.param(*case, marks=[] if case in SHORT else [pytest.mark.prove])


@pytest.mark.parametrize(("anyone", "launcher"), list(cases()), indirect=["anyone"])
def test_two_ranks_train_with_launcher_inside_container(anyone, job, launcher):
    words = {
        "torchrun": ["torchrun", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"],
        "horovodrun --gloo": ["env", f"HOME={job}", "horovodrun", "--gloo", "-np", "2"],  # writes to ~/.horovod
        "mpirun": ["mpirun", *MPIRUN],
    }[launcher]
    payload = trainer("ddp" if launcher == "torchrun" else "horovod", job)
    contained = ("--contain", "--no-home", "--bind", str(job), "--pwd", str(job))
    env = {f"APPTAINERENV_{name}": value for name, value in (AS_ROOT | {"OMP_NUM_THREADS": "1"}).items()}
    trained(job, anyone.run("run", *contained, anyone.image, *words, *payload, env=env))


def test_two_ranks_train_with_mpirun_outside_container(anyone, mpirun, job):
    trained(job, outside(anyone, mpirun, *trainer("horovod", job), binds=("--bind", str(job))))

"""mpirun of the host outside, the image inside: one container a rank, Open MPI 4.1 on both sides."""

import os
import subprocess
from pathlib import Path

import pytest

from support import ROOT

# A large message: it is the first to hang where ranks cannot read each other's memory. The size: ranks that do not find
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
    """Return the variables and the path of Debian's mpirun, unpacked if this machine does not have it."""
    system = Path("/usr/bin/mpirun.openmpi")
    if system.exists():
        return {}, str(system)
    env = os.environ | {"SLIPWAY_CACHE": str(scratch / "cache")}
    folder = subprocess.check_output([ROOT / "build" / "debs", "openmpi-bin"], text=True, env=env).strip()
    subprocess.check_call(["chmod", "-R", "a+rX", scratch / "cache"])
    return {"OPAL_PREFIX": f"{folder}/usr"}, f"{folder}/usr/bin/mpirun.openmpi"


def test_every_rank_in_a_container_of_its_own_finds_the_others(anyone, mpirun):
    variables, program = mpirun
    variables = variables | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    # Each rank of an ordinary user gets a user namespace of its own, unless they share one.
    shared = ["--sharens"] if anyone.prefix else []
    # The host's OPAL_PREFIX means nothing inside.
    ranks = ["env", "--unset=OPAL_PREFIX", anyone.apptainer, "exec", *shared, anyone.image, "python", "-c", ALLREDUCE]
    words = [*anyone.prefix, program, "-np", "2", "--oversubscribe", "--bind-to", "none", *ranks]
    done = subprocess.run(
        words,
        cwd=anyone.home,
        env=anyone.environment() | variables,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 of 2: 3", "rank 1 of 2: 3"]

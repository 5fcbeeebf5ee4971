"""Every command of the README's second table, run as it stands there, on the login node of a real Slurm cluster."""

import re
import sys
from pathlib import Path

import pytest

from readme import ON_CLUSTER, ROOT, SCRIPT

pytestmark = pytest.mark.prove
SHORT = " --epochs 1 --arch mlp --no-figures"


@pytest.fixture
def place(tmp_path):
    """Return a folder that looks like a clone."""
    for name in ("configs", "jobscripts", "build"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    (tmp_path / "my_train.py").write_text(SCRIPT)
    return tmp_path


@pytest.mark.parametrize("command", ON_CLUSTER)
def test_a_row_does_what_it_says(request, cluster, place, command):
    env = {"DEVICE": "cpu", "OMP_NUM_THREADS": "1", "USE_CONTAINER": "0"}
    if command == "sbatch jobscripts/ddp.job":  # just this one in the image: the others differ by something else
        env |= request.getfixturevalue("image")

    def at_login(line):
        return cluster.run(
            "bash", "-c", f'cd "$1" && PATH={Path(sys.executable).parent}:$PATH && {line}', "x", str(place), **env
        )

    if "4711" in command:
        long = " --epochs 400 --arch mlp" if "cancel" in command else SHORT
        number = at_login(f"sbatch --parsable jobscripts/ddp.job{long}").strip()
        job = cluster.job(number, place / f"slurm-{number}.out")
        job.until("epoch 1/")
        said = at_login(command.replace("4711", number))
        assert job.wait()["JobState"] == ("CANCELLED" if "cancel" in command else "COMPLETED"), job.output
        assert {"status": f"run runs/ddp-{number}: ", "logs": "epoch 1/1", "cancel": ""}[command.split()[1]] in said
        return
    trains = "ddp" in command and "TRAIN_SCRIPT" not in command
    short = (" --" if "jobgen" in command else "") + SHORT
    said = at_login(command + (short if trains else ""))
    number = re.search(r"\d+", said)[0]
    job = cluster.job(number, place / f"slurm-{number}.out")
    assert job.wait()["JobState"] == "COMPLETED", job.output
    assert "TRAIN_SCRIPT" not in command or "4 ranks, loss 0.0" in job.output

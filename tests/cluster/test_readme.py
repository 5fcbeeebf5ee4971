"""All commands of README.md and docs/ that need a scheduler, unchanged, on the login node of a real Slurm."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import started, until
from readme import ASKED, ON_CLUSTER, ON_NODE, fresh_clone

pytestmark = pytest.mark.prove
SHORT = " --epochs 1 --arch mlp --no-figures"
FIXED = {"SLIPWAY_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "USE_CONTAINER": "0"}
NAMES = {"NODE": "node1", "ADDRESS_OF_ANOTHER_NODE": "10.77.0.12"}
"""Values for the placeholders in capitals."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Return a cluster of three nodes: one command requests a spare node."""
    yield from started(tmp_path_factory.getbasetemp(), nodes=3)


@pytest.fixture
def place(tmp_path):
    """Return a fresh clone after README's steps 1 and 2, with the reader's own environment and data."""
    folder = fresh_clone(tmp_path / "clone")
    for name in (".venv", ".venv-horovod", ".venv-nodes"):
        (folder / name).symlink_to(sys.prefix)
    (folder / "slipway.sif").touch()  # submission checks that the image exists; with USE_CONTAINER=0 jobs do not use it
    shutil.copy(folder / "jobscripts/sites/example.toml", folder / "jobscripts/sites/mine.toml")
    (tmp_path / "envs").mkdir()
    (tmp_path / "envs" / "mine").symlink_to(sys.prefix)
    (tmp_path / "scratch" / "mine").mkdir(parents=True)
    shutil.copytree(folder / "jobscripts", tmp_path / "opt" / "slipway")
    return folder


@pytest.fixture
def at_login(cluster, place):
    """Return a function that runs a command line in the clone, in the environment of step 1."""

    def at_login(line, **env):
        line = f'cd "$1" && PATH={Path(sys.executable).parent}:$PATH && {line}'
        return cluster.run("bash", "-c", line, "x", str(place), **{**FIXED, **env})

    return at_login


@pytest.fixture
def job(cluster, place):
    """Return a function that finds the job whose number is at the end of a command's output."""

    def job(said):
        number = re.search(r"(\d+)\s*$", said)[1]
        return cluster.job(number, place / f"slurm-{number}.out")

    return job


def completed(job):
    job.ends()
    return job.output


def local(command, place):
    """Return the command with this machine's folders instead of a cluster's."""
    for theirs, ours in {"$HOME/envs": "envs", "/scratch/": "scratch/", "/opt/slipway": "opt/slipway"}.items():
        command = command.replace(theirs, f"{place.parent}/{ours}")
    return command


TRAINS = [command for command in ON_CLUSTER if "4711" not in command]
FOLLOWS = [command for command in ON_CLUSTER if "4711" in command]


@pytest.mark.parametrize("command", TRAINS)
def test_documented_submit_command_trains_as_described(request, place, at_login, job, command):
    env = {}
    if command == "sbatch jobscripts/ddp.job":  # only this one in the image: the others test something else
        env = request.getfixturevalue("image")
    if "sbatch mine.job" in command:
        at_login("jobgen render ddp --site jobscripts/sites/example.toml --output mine.job")
    own, tests = "SLIPWAY_SCRIPT" in command, "selftest" in command
    split = "split" in command  # another model, one rank per node
    train = SHORT.replace(" --arch mlp", "") if split else SHORT
    short = "" if own or tests else f" --{train}" if "jobgen" in command else train
    said = completed(job(at_login(local(command, place) + short, **env)))
    if "my_session" in command:
        assert "done at step 160" in said
    elif own:
        assert "4 ranks, loss 0.0" in said
    elif not tests:
        halved = "--nodes=1" in command or "ranks_per_node=1" in command
        assert f"{2 if split or halved else 4} rank(s)" in said
    if "horovod" in command:
        assert '"--backend", "horovod"' in next(place.glob("runs/*/run.json")).read_text()


@pytest.mark.parametrize("command", FOLLOWS)
def test_documented_follow_command_works_on_job(at_login, job, command):
    long = " --epochs 400 --arch mlp" if "cancel" in command else SHORT
    followed = job(at_login(f"sbatch --parsable jobscripts/ddp.job{long}"))
    followed.until("epoch 1/")
    line = command.replace("4711", followed.number)
    if "sbatch" in command:
        completed(followed)
        again = job(at_login(f"{line} --epochs 2 --arch mlp --no-figures"))
        assert "epoch 2/2" in completed(again)
        assert "attempt 2 in " in again.output
        return
    said = at_login(line)
    followed.ends(JobState="CANCELLED" if "cancel" in command else "COMPLETED")
    expected = {"status": f"runs/ddp-{followed.number}", "logs": "epoch 1/1", "cancel": ""}
    assert expected[command.split()[1]] in said


@pytest.mark.parametrize("command", ASKED)
def test_documented_cluster_query_prints_output(place, at_login, command):
    (place / "bin").mkdir()
    (place / "bin" / "apptainer").symlink_to("/bin/true")
    line = re.sub(r"\b[A-Z_]{4,}\b", lambda found: NAMES[found[0]], command)
    assert at_login(f'PATH="$PWD/bin:$PATH" && {line}').strip()


@pytest.mark.parametrize("command", [command for command in ON_NODE if "jupyter" not in command])
def test_documented_shell_command_runs_on_node(place, at_login, command):
    """Input comes from a pipe here; tests/cluster/test_shell.py uses a terminal."""
    (place / "images").mkdir()
    (place / "bin").mkdir()
    (place / "bin" / "nvidia-smi").write_text("#!/bin/sh\nhostname\n")
    (place / "bin" / "nvidia-smi").chmod(0o755)
    typed = 'torchrun --help | head -n 1; echo on $(hostname), $GPUS_PER_NODE GPU, data "<$DATA>"'
    said = at_login(f'PATH="$PWD/bin:$PATH"; echo {shlex.quote(typed)} | {command} 2>&1')
    if "nvidia-smi" in command:
        assert said.endswith("\nnode1\n")
        return
    gpus = "2" if "devices_per_rank=2" in command else "0" if "device=cpu" in command else "1"
    data = f"{place}/images" if "SLIPWAY_DATA" in command else ""
    assert "\nusage: torchrun" in said
    assert said.endswith(f"\non node1, {gpus} GPU, data <{data}>\n")


def test_documented_jupyter_command_serves_python_kernel(cluster, place, at_login):
    """Jupyter from a separate folder, in the environment: it responds on the node and offers a Python kernel."""
    (command,) = [command for command in ON_NODE if "jupyter" in command]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", ".jupyter", "jupyterlab", "ipykernel"]
    subprocess.run(pip, cwd=place, check=True)
    root = " --allow-root --IdentityProvider.token=secret"
    at_login(f"({command}{root} >jupyter.log 2>&1 &)")
    log = place / "jupyter.log"
    assert until(lambda: "http://127.0.0.1:8899/" in log.read_text(), limit=80) is not None, log.read_text()
    ask = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8899/api/kernelspecs?token=secret').read())"
    assert "python3" in cluster.control("on", "node1", sys.executable, "-c", ask)
    assert "shell: on node1, in " in log.read_text()

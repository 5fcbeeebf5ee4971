"""`jobgen run` and `jobgen.Job` on a real Slurm: each form, from the command to the end of the run."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from clusters import AS_ROOT as SETTINGS
from clusters import CLUSTER, JOBGEN
from support import ROOT, digest, status

SCRIPT = ROOT / "tests" / "scripts" / "session" / "classifier.py"
SHARED = ["--site", "example", "--set", 'shared=["/"]']
"""The folders of tests are in /tmp, which the simulated nodes share."""
CPUS = ["--env", "SLIPWAY_DEVICE=cpu", "--env", "OMP_NUM_THREADS=1"]
HERE = ["--venv", sys.prefix]


@pytest.fixture
def folder(tmp_path):
    """Return a folder from which jobs are submitted, with a script and a package in it."""
    shutil.copy(SCRIPT, tmp_path / "my_train.py")
    (tmp_path / "package").mkdir()
    shutil.copy(SCRIPT, tmp_path / "package" / "train.py")
    (tmp_path / "small.toml").write_text('[data]\ndataset = "digits"\n[model]\narch = "mlp"\n[train]\nepochs = 1\n')
    return tmp_path


def following(folder, *words, place=(*SHARED, *CPUS, *HERE)):
    """Return the command that runs ``words``, of which the first two are no arguments of the program, to its end."""
    command = [CLUSTER, "run", "env", f"--chdir={folder}", *JOBGEN, "run", "--follow"]
    return [*command, *words[:2], *place, *words[2:]]


def follow(cluster, folder, *words, place=(*SHARED, *CPUS, *HERE), code=0, **env):
    """Run a job to its end; return its number and its log, which the command prints."""
    done = subprocess.run(
        following(folder, *words, place=place), env=cluster.env | SETTINGS | env, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    number, _, log = done.stdout.partition("\n")
    return number, log, done.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["my_train.py", "--nodes=2", "--gpus-per-node=2", "--", "--epochs", "2"], "my_train"),
        (["-m", "package.train", "--name=mine", "--nodes=2", "--gpus-per-node=1", "--", "--epochs", "2"], "mine"),
        (["small.toml", "--nodes=2", "--", "--no-figures"], "small"),
        (["my_train.py", "--backend=single", "--gpus-per-node=1", "--", "--epochs", "2"], "my_train"),
    ],
    ids=["script", "module", "configuration", "single"],
)
def test_each_form_runs_to_its_end(cluster, folder, table, words, name):
    number, log, said = follow(cluster, folder, *words)
    run = folder / "runs" / f"{name}-{number}"
    assert status(run)["state"] == "done"
    assert (run / "metrics.jsonl").is_file()
    assert f"{run}" in log
    table("jobgen run", [(" ".join(words), 0, said.splitlines()[-1].replace(str(folder), ""))])


def test_run_stopped_continues_on_one_node(cluster, folder):
    """The command is the run folder; it ends with the bytes of a run that was not stopped, by the same ranks."""
    arguments = ["--", "--epochs", "12"]
    whole, *_ = follow(cluster, folder, "my_train.py", "--nodes=2", "--gpus-per-node=1", *arguments)
    words = ["my_train.py", *SHARED, *CPUS, *HERE, "--nodes=2", "--gpus-per-node=1", *arguments]
    job = cluster.job(cluster.jobgen("run", *words, folder=folder, **SETTINGS).strip(), None)
    job.log = folder / f"slurm-{job.number}.out"
    job.until("step 50 ")
    cluster.jobgen("cancel", job.number, folder=folder)
    job.ends(JobState="CANCELLED")
    run = folder / "runs" / f"my_train-{job.number}"
    assert status(run)["state"] == "stopped"
    follow(cluster, folder, f"runs/{run.name}", "--nodes=2", place=[])
    assert status(run)["state"] == "done"
    other = folder / "runs" / f"my_train-{whole}"
    assert digest(run / "checkpoints" / "latest") == digest(other / "checkpoints" / "latest")


def test_failed_job_has_an_exit_code(cluster, folder):
    (folder / "fails.py").write_text("import torch\nraise SystemExit(7)\n")
    number, _, said = follow(cluster, folder, "fails.py", "--gpus-per-node=1", code=1)
    assert f"fails-{number}" in said


def test_interrupted_follower_leaves_the_job_alone(cluster, folder):
    words = following(folder, "my_train.py", "--gpus-per-node=2", "--", "--epochs", "400")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=cluster.env | SETTINGS, text=True, **pipes) as process:
        number = process.stdout.readline().strip()
        job = cluster.job(number, folder / f"slurm-{number}.out")
        job.until("step 50 ")
        cluster.run("pkill", "--signal", "INT", "--full", "jobgen run --follow my_train.py")
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert job.state == "RUNNING"
    cluster.jobgen("cancel", number, folder=folder)
    job.ends(JobState="CANCELLED")


FROM_PYTHON = """
import json, sys
from jobgen import Job

settings = ['shared=["/"]']
variables = {"SLIPWAY_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
run = Job("my_train.py", "--epochs", "2", nodes=2, gpus_per_node=1, time="30", site="example", venv=sys.prefix,
          env=variables, settings=settings).submit()
state = run.wait(timeout=240)
print(json.dumps([state, run.step, str(run.folder), len(run.metrics()), run.name]))
"""


def test_from_python(cluster, folder):
    said = cluster.run("env", f"--chdir={folder}", sys.executable, "-c", FROM_PYTHON, **SETTINGS)
    state, step, path, records, number = json.loads(said.splitlines()[-1])
    assert state == "done"
    assert re.fullmatch(rf"(.*/)?runs/my_train-{number}", path)
    assert step > 0
    assert records > 0


@pytest.mark.parametrize("words", [["my_train.py", "--nodes=2", "--gpus-per-node=1", "--", "--epochs", "1"]])
def test_in_the_image(cluster, folder, image, words):
    place = [*SHARED, *CPUS, "--image", image["SLIPWAY_IMAGE"]]
    env = {name: image[name] for name in ("PATH", "APPTAINER_BIND")}
    number, *_ = follow(cluster, folder, *words, place=place, **env)
    assert status(folder / "runs" / f"my_train-{number}")["state"] == "done"

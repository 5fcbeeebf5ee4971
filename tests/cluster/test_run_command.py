"""`jobgen run` and `jobgen.Job` on a real Slurm, a real OpenPBS and a workstation: each form, to the end of its run."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from clusters import AS_ROOT, CLUSTER, JOBGEN, Job
from support import ROOT, digest, status

SCRIPT = ROOT / "tests" / "scripts" / "session" / "classifier.py"
SHARED = ("--set", 'shared=["/"]')
"""The folders of tests are in /tmp, which the simulated nodes share."""
CPUS = ("--env", "SLIPWAY_DEVICE=cpu", "--env", "OMP_NUM_THREADS=1")
HERE = ("--venv", sys.prefix)
SLOW = str(ROOT / "tests" / "cluster" / "foreign" / "slow_steps.py")


class Login(NamedTuple):
    """A user's shell on the login node of a cluster, or on a workstation."""

    shell: tuple[str, ...]
    """Words before each command."""
    folder: Path
    """The current folder, with a script, a package and a configuration in it."""
    site: str
    env: dict[str, str]
    job: Callable[[str], Job]
    """Returns the job with that number."""
    cancelled: dict[str, str]
    """Fields of a job that its user has cancelled."""

    def words(self, *words, place=HERE):
        """Return the words of ``jobgen run`` in the current folder; a new run has the flags of ``place``."""
        new = () if words[-1].startswith("runs/") else ("--site", self.site, *SHARED, *CPUS, *place)
        return [*self.shell, "env", f"--chdir={self.folder}", *JOBGEN, "run", *new, *words]

    def follow(self, *words, code=0, place=HERE, **env):
        """Run a job to its end; return its run folder, its log, and what the command says."""
        done = subprocess.run(
            self.words("--follow", *words, place=place), env=self.env | env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return self.newest(), done.stdout, done.stderr

    def start(self, *words):
        """Start a follower of a new job; return its process and the job."""
        process = subprocess.Popen(
            self.words("--follow", *words), env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        return process, self.job(process.stdout.readline().strip())

    def run(self, *words):
        words = [*self.shell, "env", f"--chdir={self.folder}", *words]
        return subprocess.run(words, env=self.env, stdout=subprocess.PIPE, text=True, timeout=280, check=True).stdout

    def newest(self):
        """Return the run folder that changed last."""
        return max((self.folder / "runs").iterdir(), key=lambda path: (path / "logs").stat().st_mtime)


def prove(*values):
    return pytest.param(*values, marks=pytest.mark.prove)


EVERYWHERE = pytest.mark.parametrize("login", ["slurm", prove("pbs"), prove("workstation")], indirect=True)
ON_CLUSTERS = pytest.mark.parametrize("login", ["slurm", prove("pbs")], indirect=True)
ON_PBS = pytest.mark.parametrize("login", [prove("pbs")], indirect=True)


@pytest.fixture
def login(request, cluster, tmp_path):
    shutil.copy(SCRIPT, tmp_path / "my_train.py")
    (tmp_path / "package").mkdir()
    shutil.copy(SCRIPT, tmp_path / "package" / "train.py")
    (tmp_path / "small.toml").write_text('[data]\ndataset = "digits"\n[model]\narch = "mlp"\n[train]\nepochs = 1\n')
    shell, env = (str(CLUSTER), "run"), cluster.env | AS_ROOT
    if request.param == "pbs":
        openpbs = request.getfixturevalue("openpbs")
        env = {**env, "PATH": f"/opt/pbs/bin:{env['PATH']}"}
        return Login(shell, tmp_path, "pbs", env, openpbs.job, {"job_state": "F"})

    def job(number):
        return cluster.job(number, tmp_path / f"slurm-{number}.out")

    if request.param == "workstation":
        shell = ()
        site = 'name = "here"\nscheduler = "local"\nresume = "none"\ngpus_per_node = 2\n'
        (tmp_path / "here.toml").write_text(site)
    return Login(shell, tmp_path, "example" if shell else "here.toml", env, job, {"JobState": "CANCELLED"})


FORMS = {
    "script": ["my_train.py", "--gpus-per-node=2", "--", "--epochs", "2"],
    "module": ["-m", "package.train", "--name=mine", "--gpus-per-node=1", "--", "--epochs", "2"],
    "configuration": ["small.toml", "--", "--no-figures"],
    "single": ["my_train.py", "--backend=single", "--gpus-per-node=1", "--", "--epochs", "2"],
    "horovod": ["small.toml", "--backend=horovod", "--gpus-per-node=2", "--", "--no-figures"],
}
"""Ways to run a program."""
WORLD = {"script": 2, "module": 1, "configuration": 2, "single": 1, "horovod": 2}
"""Ranks of each on one node."""


@EVERYWHERE
@pytest.mark.parametrize(
    ("form", "way"),
    [
        ("script", "environment"),
        ("module", "environment"),
        ("configuration", "environment"),
        ("single", "environment"),
        ("script", "image"),
        prove("horovod", "environment"),
        *(prove(form, "image") for form in ("module", "configuration", "single", "horovod")),
    ],
)
def test_each_form_runs_to_its_end(request, login, table, form, way):
    place, env = HERE, {}
    if way == "image":
        image = request.getfixturevalue("image")
        place, env = ("--image", image["SLIPWAY_IMAGE"]), {"APPTAINER_BIND": image["APPTAINER_BIND"]}
        env["PATH"] = f"{image['PATH']}:{login.env['PATH'].partition(':')[0]}"  # the last is that of qsub
    nodes = ["--nodes=2"] if login.shell and form != "single" else []
    run, log, said = login.follow(*nodes, *FORMS[form], place=place, **env)
    assert status(run)["state"] == "done"
    assert (run / "metrics.jsonl").is_file()
    assert f"{run}" in (log if login.shell else said)
    assert json.loads((run / "run.json").read_text())["world_size"] == WORLD[form] * (1 + len(nodes))
    table(f"jobgen run, {login.site}, {way}", [(" ".join([*nodes, *FORMS[form]]), 0)])


@ON_CLUSTERS
def test_stopped_run_continues_bitwise(login):
    """The command is the run folder; it ends with the bytes of a run that was not stopped."""
    words = ["--nodes=2", "--gpus-per-node=1", "my_train.py", "--", "--epochs", "12"]
    whole, *_ = login.follow(*words)
    follower, job = login.start(*words)
    with follower:
        job.until("step 50 ")
        login.run(*JOBGEN, "cancel", job.number)
        job.ends(**login.cancelled)
        follower.communicate(timeout=60)
    assert follower.returncode == 1
    run = login.newest()
    assert status(run)["state"] == "stopped"
    login.follow("--nodes=2", f"runs/{run.name}")
    assert status(run)["state"] == "done"
    assert digest(run / "checkpoints" / "latest") == digest(whole / "checkpoints" / "latest")


@EVERYWHERE
def test_failed_job_has_an_exit_code(login):
    (login.folder / "fails.py").write_text("import torch\nraise SystemExit(7)\n")
    run, _, said = login.follow("fails.py", "--gpus-per-node=1", code=1)
    assert run.name in said


@ON_CLUSTERS
def test_interrupted_follower_leaves_the_job_alone(login):
    follower, job = login.start("my_train.py", "--gpus-per-node=2", "--", "--epochs", "400")
    with follower:
        job.until("step 50 ")
        login.run("pkill", "--signal", "INT", "--full", "jobgen run .*--follow my_train.py")
        follower.communicate(timeout=60)
    assert follower.returncode == 130
    assert job.state not in job.ended
    login.run(*JOBGEN, "cancel", job.number)
    job.ends(**login.cancelled)


FROM_PYTHON = """
import json, sys
from jobgen import Job

variables = {"SLIPWAY_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
run = Job("my_train.py", "--epochs", "2", nodes=2, gpus_per_node=1, time="30", site=sys.argv[1], venv=sys.prefix,
          env=variables, settings=['shared=["/"]']).submit()
state = run.wait(timeout=240)
print(json.dumps([state, run.step, str(run.folder), len(run.metrics())]))
"""


@ON_CLUSTERS
def test_from_python(login):
    said = login.run(sys.executable, "-c", FROM_PYTHON, login.site)
    state, step, path, records = json.loads(said.splitlines()[-1])
    assert state == "done"
    assert path == str(login.newest())
    assert step > 0
    assert records > 0


WAITING = """
import sys
from jobgen import SubmittedRun

run = SubmittedRun(sys.argv[1])
print(run.wait(timeout=480), run.folder)
"""


@ON_PBS
def test_follower_and_wait_stay_with_a_chain_of_jobs(login, table):
    """A run of about 130 s, of whose jobs' 120 s 50 are kept for a reply of the server and the last save."""
    machine = [f"--set=env.{name}='{value}'" for name, value in AS_ROOT.items()]
    follower, job = login.start(SLOW, "--gpus-per-node=1", "--time=2", "--set=save_seconds=30", *machine)
    words = [*login.shell, "env", f"--chdir={login.folder}", sys.executable, "-c", WAITING, job.number]
    with follower, subprocess.Popen(words, env=login.env, stdout=subprocess.PIPE, text=True) as waiting:
        log, said = follower.communicate(timeout=500)
        assert waiting.communicate(timeout=60)[0].split() == ["done", str(login.newest())]
    assert follower.returncode == 0, log + said
    assert re.search(r"continued by job \d+", log)
    steps = re.findall(r"step (\d+) ", log)
    assert steps == sorted({*steps}, key=int)  # each line is printed once
    table("OpenPBS: a chain", [[line] for line in log.splitlines() if re.search("stopped|resumed|continued by", line)])


@ON_PBS
def test_each_task_of_an_array_has_a_run(login):
    words = login.words("my_train.py", "--gpus-per-node=1", "--array=0-1", "--", "--epochs", "2")
    number = subprocess.run(words, env=login.env, stdout=subprocess.PIPE, text=True, timeout=60, check=True).stdout
    array = number.partition("[")[0]
    for task in (0, 1):
        login.job(f"{array}[{task}].head").ends(Exit_status="0")
        assert status(login.folder / "runs" / f"my_train-{array}_{task}")["state"] == "done"

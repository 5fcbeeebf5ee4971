"""A Slurm cluster and an OpenPBS on this machine, and their jobs.

No process is left even where a test run is killed.
"""

import fcntl
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobgen.cli import main
from support import ROOT, weights

CLUSTER = Path(__file__).parent / "cluster"
FACE = Path(__file__).parent / "pbs"
OPENPBS = Path(__file__).parent / "openpbs"
LIBRARY = ROOT / "jobscripts" / "lib"
AS_ROOT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",  # the nodes claim more cores than the machine has
}
"""Settings that Open MPI needs here."""
FIXED = {"SLIPWAY_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "USE_CONTAINER": "0", **AS_ROOT}
"""Settings of every job here."""
EXPORTED = {"SLIPWAY_DEVICE": "cpu", "SLIPWAY_VENV": sys.prefix, "USE_CONTAINER": "0", **AS_ROOT}
"""Settings of every OpenPBS job. OpenPBS overrides an exported OMP_NUM_THREADS."""
TOOLS = ("slurmctld", "slurmd", "munged", "nsenter", "unshare", "ip")
REPORT = str(Path(__file__).parent / "foreign" / "report.py")
"""A program whose ranks print their environment, for ``seen_by_ranks``."""
JOBGEN = [sys.executable, "-m", "jobgen"]
OF_A_JOB = r"trainer|slow_steps|torchrun|ft_launcher|prterun|prted|mpirun|guard\.sh|slurm_script|[Aa]pptainer"
"""Pattern of the command line of a job's process."""

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
amp = "none"
[run]
log_interval = 10
"""
"""float32, so that weights are the same for every number of ranks except for the order of sums."""


def until(condition: Callable[[], object], *, limit: float = 240, pause: float = 0.1) -> float | None:
    """Check ``condition`` every ``pause`` seconds; return the seconds until it holds, None after ``limit`` seconds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + limit:
            return None
        time.sleep(pause)
    return time.monotonic() - began


class Job:
    """A Slurm job of the cluster."""

    ended = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})
    success = {"JobState": "COMPLETED"}
    state_field = "JobState"

    def __init__(self, cluster: "Cluster", number: str, log: Path) -> None:
        self.cluster, self.number, self.log = cluster, number, log

    @property
    def fields(self) -> dict[str, str]:
        return dict(re.findall(r"(\w+)=(\S*)", self.cluster.run("scontrol", "show", "job", self.number)))

    @property
    def state(self) -> str:
        return self.fields[self.state_field]

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    def until(self, text: str, *, times: int = 1, limit: float = 200) -> None:
        """Wait until the job's log contains ``text`` the given number of times."""
        until(lambda: self.output.count(text) >= times or self.state in self.ended, limit=limit, pause=0.2)
        assert self.output.count(text) >= times, f"{self.state}, and no {text!r} within {limit} s:\n{self.output}"

    def ends(self, *, limit: float = 280, **expected: str) -> dict[str, str]:
        """Wait for the job's end, expect these of the scheduler's fields, or success; return all fields."""
        deadline = time.monotonic() + limit
        while (fields := self.fields)[self.state_field] not in self.ended:
            assert time.monotonic() < deadline, f"{fields[self.state_field]} after {limit} s:\n{self.output}"
            time.sleep(0.3)
        expected = expected or self.success
        found = {name: fields.get(name) for name in expected}
        assert found == expected, f"{found} instead of {expected}:\n{self.output}"
        return fields

    def proven(self, out: Path, alone: dict, *, ranks: int) -> tuple[dict[str, str], float]:
        """Wait for a run of so many ranks; return the job's fields and the distance of its weights from one rank's."""
        fields = self.ends()
        assert json.loads((out / "run.json").read_text())["world_size"] == ranks
        trained = weights(out / "checkpoints" / "latest")
        distance = max(float((trained[name] - alone[name]).abs().max()) for name in alone)
        assert distance < 1e-5
        return fields, distance


def sshd() -> str:
    """Return the path of an sshd: this machine's, or an unpacked one from Debian."""
    if path := shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        return path
    folder = subprocess.check_output([ROOT / "build" / "debs", "openssh-server"], text=True).strip()
    return f"{folder}/usr/sbin/sshd"


class Cluster:
    """A head and nodes with simulated GPUs, in namespaces."""

    def __init__(
        self,
        folder: Path,
        shared: Path,
        *,
        nodes: int = 2,
        gpus: int = 2,
        slurmd_timeout: int = 10,
        select: str = "CR_Core",
    ) -> None:
        self.folder, self.home = folder, folder / "home"
        self.env = os.environ | {"CLUSTER": str(folder), "CLUSTER_SHARED": f"{shared}:{ROOT}", "CLUSTER_SSHD": sshd()}
        self.env |= {"CLUSTER_GPUS": str(gpus), "CLUSTER_SLURMD_TIMEOUT": str(slurmd_timeout)}
        self.env["CLUSTER_SELECT"] = select
        # A user does not submit from the environment of `make test`. With COLUMNS, which pytest-xdist sets, ps(1)
        # would shorten its lines.
        for name in ("PYTHONPATH", "OMP_NUM_THREADS", "COLUMNS"):
            self.env.pop(name, None)
        self.lease = (folder / "lease").open("w")
        fcntl.flock(self.lease, fcntl.LOCK_EX)
        self.control("up", str(nodes))

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

    def jobgen(self, *words: str | Path, folder: Path = ROOT, **env: str) -> str:
        return self.run("env", f"--chdir={folder}", *JOBGEN, *map(str, words), **env)

    def submit(
        self,
        script: str | Path,
        *arguments: str,
        out: Path,
        folder: Path = ROOT,
        sbatch: tuple[str, ...] = (),
        **env: str,
    ) -> Job:
        """Submit a committed script as it is, or that of another path, to compute on CPUs into ``out``.

        It is submitted from ``folder``, where ranks find modules.
        """
        log, path = out.with_name(f"{out.name}.log"), ROOT / "jobscripts" / script
        env = {**FIXED, "SLIPWAY_VENV": sys.prefix, "SLIPWAY_RUN_DIR": str(out), **env}
        if path.suffix == ".pbs":
            words = ["env", f"--chdir={out.parent}", FACE / "qsub", *sbatch, "-V", path]
            env = {"SLIPWAY_LIB": str(LIBRARY), **env}
            env |= {"SLIPWAY_ARGS": shlex.join(arguments)} if arguments else {}
            number = self.run(*map(str, words), **env).strip().removesuffix(".head")
            return Job(self, number, out.with_name(f"{path.stem}.o{number}"))
        words = ["env", f"--chdir={folder}", "sbatch", "--parsable", f"--output={log}", *sbatch, str(path), *arguments]
        return self.job(self.run(*words, **env).strip(), log)

    def resubmit(self, out: Path, *, folder: Path, sbatch: tuple[str, ...] = (), **env: str) -> Job:
        """Submit job.sh of the run folder ``out`` from ``folder``, with only the settings ``env``."""
        log = folder / f"{out.name}.again.log"
        words = ["env", f"--chdir={folder}", "sbatch", "--parsable", f"--output={log}", *sbatch, str(out / "job.sh")]
        return self.job(self.run(*words, **{"OMP_NUM_THREADS": "1", **AS_ROOT, **env}).strip(), log)

    def job(self, number: str, log: Path) -> Job:
        """Return the job with that number, which writes to ``log``."""
        return Job(self, number, log)

    def cancel_jobs(self) -> None:
        """Cancel all jobs, and wait until the nodes are free."""

        def no_job_is_left() -> bool:
            if left := self.run("squeue", "--noheader", "--format=%A").split():
                self.run("scancel", *left)
            return not left

        until(no_job_is_left, limit=60, pause=1)

    def processes(self, pattern: str = OF_A_JOB, *, nodes: Iterable[str] = ("node1", "node2")) -> list[str]:
        """Return the nodes' processes whose command lines match a pattern."""
        lines = [(node, line) for node in nodes for line in self.control("on", node, "ps", "-eo", "args").splitlines()]
        return [f"{node}: {line[:100]}" for node, line in lines if re.search(pattern, line) and line != "ps -eo args"]

    def left_over(
        self, pattern: str = OF_A_JOB, *, nodes: Iterable[str] = ("node1", "node2"), limit: float = 120
    ) -> list[str]:
        """Return matching processes that remain after a job had some seconds to end them."""
        until(lambda: not self.processes(pattern, nodes=nodes), limit=limit, pause=0.5)
        return self.processes(pattern, nodes=nodes)

    def local_folders(self, job: Job) -> list[Path]:
        """Return a job's files on the nodes' local disks."""
        return sorted(self.folder.glob(f"tmp.node*/slipway-{job.number}.*"))

    def close(self) -> None:
        self.control("down")
        self.lease.close()


def started(shared: Path, **options: Any) -> Iterator[Cluster]:
    """Yield a cluster and end it afterwards; its nodes share ``shared``. Skip if it cannot be started."""
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        pytest.skip(f"no {', '.join(missing)}: apt-get install slurm-wlm munge iproute2")
    if os.geteuid() != 0:
        pytest.skip("only root may make the namespaces of the cluster's nodes")
    # not in pytest's folder, which only root can read
    with tempfile.TemporaryDirectory(prefix="slipway-cluster.", dir="/var/tmp") as folder:
        cluster = Cluster(Path(folder), shared, **options)
        yield cluster
        cluster.close()


class PbsJob(Job):
    """An OpenPBS job, or one job of an array (``12[1].head``).

    Its states are the letters of qstat: Q, H, R, E, or F once it has ended (of an array: B while it runs). Its
    Exit_status is the script's, or 256 more than the signal that ended it, or below 0 if PBS ended it.
    """

    ended = frozenset("F")
    success = {"Exit_status": "0"}
    state_field = "job_state"

    def __init__(self, cluster: Cluster, number: str) -> None:
        self.cluster, self.number = cluster, number

    @property
    def fields(self) -> dict[str, str]:
        said = self.cluster.run("/opt/pbs/bin/qstat", "-x", "-f", "-w", self.number)
        return dict(re.findall(r"^ {4}(\S+) = (.*)$", said, flags=re.MULTILINE))

    @property
    def log(self) -> Path:
        return Path(self.fields["Output_Path"].partition(":")[2])

    @property
    def output(self) -> str:
        """Return the job's output: PBS keeps it on the first node until the job ends."""
        if self.log.exists():
            return self.log.read_text(encoding="utf-8", errors="replace")
        node = self.fields.get("exec_host", "head").partition("/")[0]
        spooled = f"/var/spool/pbs/spool/{self.number}.OU"
        return self.cluster.control("on", node, "sh", "-c", 'cat "$0" 2>/dev/null || :', spooled)


class OpenPbs:
    """A real OpenPBS on a cluster's nodes."""

    def __init__(self, cluster: Cluster, prefix: str, *, nodes: int = 2) -> None:
        self.cluster, self.prefix = cluster, prefix
        self.control("up", prefix, str(nodes))

    def control(self, *words: str) -> None:
        done = subprocess.run(
            [OPENPBS, *words], env=self.cluster.env, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def run(self, command: str, *words: str, user: str = "alice") -> str:
        """Run a PBS command on the head."""
        return self.cluster.run(f"/opt/pbs/bin/{command}", *words, CLUSTER_AS=user)

    def submit(
        self,
        script: str | Path,
        *arguments: str,
        out: Path,
        qsub: tuple[str, ...] = (),
        user: str = "alice",
        **env: str,
    ) -> PbsJob:
        """Submit a committed script as it is, or that of another path, to compute on CPUs into ``out``.

        As a user does: from the folder of ``out``, which has to be the user's, with settings in the environment.
        """
        env = {**EXPORTED, "SLIPWAY_RUN_DIR": str(out), "SLIPWAY_ARGS": shlex.join(arguments), **env}
        words = [f"--chdir={out.parent}", "/opt/pbs/bin/qsub", "-V", *qsub, str(ROOT / "jobscripts" / script)]
        return self.job(self.cluster.run("env", *words, CLUSTER_AS=user, **env).strip())

    def resubmit(self, out: Path, *, user: str, **env: str) -> PbsJob:
        """Submit job.sh of the run folder ``out``, with only the settings ``env``."""
        words = [f"--chdir={out.parent}", "/opt/pbs/bin/qsub", "-V", str(out / "job.sh")]
        return self.job(self.cluster.run("env", *words, CLUSTER_AS=user, **AS_ROOT, **env).strip())

    def job(self, number: str) -> PbsJob:
        return PbsJob(self.cluster, number)


def rendered(folder, spec, site, *settings, standalone=False):
    """Return the script of a spec at a site, in ``folder``."""
    path = folder / f"{spec}.{'pbs' if site == 'pbs' else 'job'}"
    words = [word for setting in settings for word in ("--set", setting)] + ["--standalone"] * standalone
    assert main(["render", spec, "--site", site, *words, "--output", str(path)]) == 0
    return path


def seen_by_ranks(output, *, ranks):
    """Return the world, backend and container that the ranks printed; their number must be as planned."""
    seen = [json.loads(line.partition("REPORT ")[2]) for line in output.splitlines() if "REPORT " in line]
    assert sorted(row["rank"] for row in seen) == list(range(ranks)), output
    assert len({row["node"] for row in seen}) == (2 if ranks == 4 else 1), output
    return {(row["world"], row["backend"], row["container"]) for row in seen}

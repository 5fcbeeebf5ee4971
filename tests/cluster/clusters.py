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
from collections.abc import Iterator
from pathlib import Path

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
    "OMPI_MCA_mpi_yield_when_idle": "1",  # the nodes only pretend to have so many cores
}
"""What Open MPI needs here."""
FIXED = {"SLIPWAY_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "USE_CONTAINER": "0", **AS_ROOT}
"""Settings of every job here."""
EXPORTED = {"SLIPWAY_DEVICE": "cpu", "SLIPWAY_VENV": sys.prefix, "USE_CONTAINER": "0", **AS_ROOT}
"""Settings of every job of OpenPBS. It sets OMP_NUM_THREADS itself, over what is exported."""
TOOLS = ("slurmctld", "slurmd", "munged", "nsenter", "unshare", "ip")
REPORT = str(Path(__file__).parent / "foreign" / "report.py")
"""A program whose ranks print what they see, for ``seen_by_ranks``."""
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
amp = "none"
[run]
log_interval = 10
"""
"""In float32, so that weights are the same for every number of ranks, but for the order of sums."""


class Job:
    """One job of the cluster."""

    ended = ENDED

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

    def until(self, text: str, *, times: int = 1, limit: float = 200) -> None:
        """Wait until the job has said ``text`` so often."""
        deadline = time.monotonic() + limit
        while self.output.count(text) < times:
            assert self.state not in self.ended, f"ended before {text!r}:\n{self.output}"
            assert time.monotonic() < deadline, f"no {text!r} within {limit} s:\n{self.output}"
            time.sleep(0.2)

    def wait(self, limit: float = 280) -> dict[str, str]:
        """Wait for the job's end and return what Slurm knows of it."""
        deadline = time.monotonic() + limit
        while (fields := self.fields)["JobState"] not in ENDED:
            assert time.monotonic() < deadline, f"{fields['JobState']} after {limit} s:\n{self.output}"
            time.sleep(0.3)
        return fields

    def proven(self, out: Path, alone: dict, *, ranks: int) -> tuple[dict[str, str], float]:
        """Wait for a run of so many ranks; return the job's fields and the distance of its weights from one rank's."""
        fields = self.wait()
        assert fields["JobState"] == "COMPLETED", self.output
        assert json.loads((out / "run.json").read_text())["world_size"] == ranks
        trained = weights(out / "checkpoints" / "latest")
        distance = max(float((trained[name] - alone[name]).abs().max()) for name in alone)
        assert distance < 1e-5
        return fields, distance


def sshd() -> str:
    """Return the path of an sshd: this machine's, or else Debian's, unpacked."""
    if path := shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        return path
    folder = subprocess.check_output([ROOT / "build" / "debs", "openssh-server"], text=True).strip()
    return f"{folder}/usr/sbin/sshd"


class Cluster:
    """A head and so many nodes, each with so many GPUs, in namespaces."""

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
        # The environment of `make test` is not the one that a user submits from. By COLUMNS, which pytest-xdist
        # sets, ps(1) would shorten its lines.
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

    def submit(
        self,
        script: str,
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
        """Submit the job.sh of the run folder ``out`` from ``folder``, with no setting but ``env``."""
        log = folder / f"{out.name}.again.log"
        words = ["env", f"--chdir={folder}", "sbatch", "--parsable", f"--output={log}", *sbatch, str(out / "job.sh")]
        return self.job(self.run(*words, **{"OMP_NUM_THREADS": "1", **AS_ROOT, **env}).strip(), log)

    def job(self, number: str, log: Path) -> Job:
        """Return the job of that number, which writes to ``log``."""
        return Job(self, number, log)

    def cancel_jobs(self) -> None:
        """Cancel all jobs, and wait until the nodes are free."""
        deadline = time.monotonic() + 60
        while (left := self.run("squeue", "--noheader", "--format=%A").split()) and time.monotonic() < deadline:
            self.run("scancel", *left)
            time.sleep(1)

    def close(self) -> None:
        self.control("down")
        self.lease.close()


def started(
    shared: Path, *, nodes: int = 2, gpus: int = 2, slurmd_timeout: int = 10, select: str = "CR_Core"
) -> Iterator[Cluster]:
    """Yield a cluster that ends afterwards; its nodes see ``shared``. A skip where it cannot be started."""
    if missing := [tool for tool in TOOLS if not shutil.which(tool)]:
        pytest.skip(f"no {', '.join(missing)}: apt-get install slurm-wlm munge iproute2")
    if os.geteuid() != 0:
        pytest.skip("only root may make the namespaces of the cluster's nodes")
    # not in pytest's own folder, which is root's alone
    with tempfile.TemporaryDirectory(prefix="slipway-cluster.", dir="/var/tmp") as folder:
        cluster = Cluster(Path(folder), shared, nodes=nodes, gpus=gpus, slurmd_timeout=slurmd_timeout, select=select)
        yield cluster
        cluster.close()


class PbsJob(Job):
    """One job of OpenPBS, or one of an array (``12[1].head``)."""

    ended = frozenset("F")

    def __init__(self, cluster: Cluster, number: str) -> None:
        self.cluster, self.number = cluster, number

    @property
    def fields(self) -> dict[str, str]:
        said = self.cluster.run("/opt/pbs/bin/qstat", "-x", "-f", "-w", self.number)
        return dict(re.findall(r"^ {4}(\S+) = (.*)$", said, flags=re.MULTILINE))

    @property
    def state(self) -> str:
        """Return the letter of qstat: Q, H, R, E, or F once it has ended (of an array: B while it runs)."""
        return self.fields["job_state"]

    @property
    def exit_code(self) -> int | None:
        """Return the script's own exit code; 256 more than the signal that ended it; below 0 where PBS did."""
        code = self.fields.get("Exit_status")
        return None if code is None else int(code)

    @property
    def log(self) -> Path:
        return Path(self.fields["Output_Path"].partition(":")[2])

    @property
    def output(self) -> str:
        """Return what it has written: PBS keeps that on the first node until the job ends."""
        if self.log.exists():
            return self.log.read_text(encoding="utf-8", errors="replace")
        node = self.fields.get("exec_host", "head").partition("/")[0]
        spooled = f"/var/spool/pbs/spool/{self.number}.OU"
        return self.cluster.control("on", node, "sh", "-c", 'cat "$0" 2>/dev/null || :', spooled)

    def wait(self, limit: float = 280) -> dict[str, str]:
        """Wait for the job's end and return what PBS knows of it."""
        deadline = time.monotonic() + limit
        while (fields := self.fields)["job_state"] != "F":
            assert time.monotonic() < deadline, f"{fields['job_state']} after {limit} s:\n{self.output}"
            time.sleep(0.3)
        return fields


class OpenPbs:
    """A real OpenPBS on the nodes of a cluster."""

    def __init__(self, cluster: Cluster, prefix: str, *, nodes: int = 2) -> None:
        self.cluster, self.prefix = cluster, prefix
        self.control("up", prefix, str(nodes))

    def control(self, *words: str) -> None:
        done = subprocess.run(
            [OPENPBS, *words], env=self.cluster.env, capture_output=True, text=True, timeout=90, check=False
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"

    def run(self, command: str, *words: str, user: str = "alice") -> str:
        """Run one of its commands on the head."""
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
        """Submit the job.sh of the run folder ``out``, with no setting but ``env``."""
        words = [f"--chdir={out.parent}", "/opt/pbs/bin/qsub", "-V", str(out / "job.sh")]
        return self.job(self.cluster.run("env", *words, CLUSTER_AS=user, **AS_ROOT, **env).strip())

    def job(self, number: str) -> PbsJob:
        return PbsJob(self.cluster, number)


def rendered(folder, spec, site, *settings):
    """Return the script of a spec at a site, in ``folder``."""
    path = folder / f"{spec}.{'pbs' if site in {'pbs', 'torque'} else 'job'}"
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["render", spec, "--site", site, *words, "--output", str(path)]) == 0
    return path


def seen_by_ranks(output, *, ranks):
    """Return what the ranks saw, of which there must be as many as planned: world, backend, container."""
    seen = [json.loads(line.partition("REPORT ")[2]) for line in output.splitlines() if "REPORT " in line]
    assert sorted(row["rank"] for row in seen) == list(range(ranks)), output
    assert len({row["node"] for row in seen}) == (2 if ranks == 4 else 1), output
    return {(row["world"], row["backend"], row["container"]) for row in seen}

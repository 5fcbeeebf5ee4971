"""What sites do that the example does not: environments that are not handed on, GPUs as gres, salloc."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import FIXED, Cluster, Job
from support import ROOT, weights

SETTINGS = {**FIXED, "SLIPWAY_VENV": sys.prefix}


def submit(cluster: Cluster, *words: str, out: Path, **env: str) -> Job:
    """Submit a job by jobgen with ``words``; its output goes beside the run folder ``out``."""
    log = out.with_name(f"{out.name}.log")
    command = [sys.executable, "-m", "jobgen", "submit", *words[:1], "--site", "example"]
    command += ["--set", f"options.output={log}", *words[1:]]
    env = {**SETTINGS, "SLIPWAY_RUN_DIR": str(out), **env}
    return cluster.job(cluster.run(*command, **env).split()[-1], log)


class TestEnvironmentThatIsNotHandedOn:
    """SBATCH_EXPORT=NONE, which many centres advise."""

    def test_jobgen_writes_the_settings_into_the_script(self, cluster, tmp_path, config):
        run = submit(
            cluster, "ddp", out=tmp_path / "run", SBATCH_EXPORT="NONE", SLIPWAY_CONFIG=config(1), SLIPWAY_STAGE="1"
        )
        assert run.wait()["JobState"] == "COMPLETED", run.output
        said = next(line for line in run.output.splitlines() if "set at submission: " in line)
        for setting in (
            "USE_CONTAINER='0'",
            "SLIPWAY_DEVICE='cpu'",
            f"SLIPWAY_VENV='{sys.prefix}'",
            "SLIPWAY_STAGE='1'",
        ):
            assert setting in said
        again = cluster.resubmit(tmp_path / "run", folder=tmp_path, SBATCH_EXPORT="NONE")
        assert again.wait()["JobState"] == "COMPLETED", again.output

    def test_a_committed_script_says_that_they_have_not_come(self, cluster, tmp_path):
        job = cluster.submit("ddp.job", out=tmp_path / "run", SBATCH_EXPORT="NONE")
        assert job.wait()["ExitCode"] == "78:0", job.output
        assert "the environment of the submission is not here (--export=NONE, or SBATCH_EXPORT)" in job.output


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        (("--set", "gpu_request=gres"), 4),
        (("--set", "gpu_request=gpus-per-task"), 4),
        (("--set", "gpu_request=gres", "--set", "ranks_per_node=1"), 2),
    ],
)
def test_gpus_as_the_site_requests_them(cluster, tmp_path, config, settings, ranks):
    """A rank for each GPU that Slurm has given, by whatever option it was asked."""
    job = submit(cluster, "ddp", *settings, out=tmp_path / "run", SLIPWAY_CONFIG=config(1))
    assert job.wait()["JobState"] == "COMPLETED", job.output
    assert f": {ranks} rank(s), {ranks // 2} on each of 2 node(s)" in job.output
    assert "stay idle" not in job.output


class TestSalloc:
    """The committed scripts inside an allocation."""

    def run(self, cluster: Cluster, out: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        env = {**SETTINGS, "SLIPWAY_OUTPUT": str(out), **env}
        shell = 'cd "$1" && shift && "$@" 2>&1; echo "ended with $?"'
        allocation = ("salloc", "--quiet", "--nodes=2", "--gpus-per-node=2", "--cpus-per-task=4", "--partition=gpu")
        return cluster.run(*allocation, "bash", "-c", shell, "-", str(ROOT), *words, **env)

    def test_a_script_trains_there_twice(self, cluster, tmp_path, config):
        words = "bash jobscripts/ddp.job --epochs 1 && sleep 1 && bash jobscripts/ddp.job --epochs 2"
        said = self.run(cluster, tmp_path, "bash", "-c", words, SLIPWAY_CONFIG=config(2), SLIPWAY_DEVICE="cpu")
        assert said.endswith("ended with 0\n"), said
        assert said.count(": 4 rank(s), 2 on each of 2 node(s)") == 2
        first, second = sorted(tmp_path.glob("ddp-*"))
        assert weights(first / "checkpoints" / "latest").keys() == weights(second / "checkpoints" / "latest").keys()

    def test_horovod(self, cluster, tmp_path, config):
        env = {"SLIPWAY_CONFIG": config(1), "BACKEND": "horovod"}
        said = self.run(cluster, tmp_path, "bash", "jobscripts/ddp.job", **env)
        assert said.endswith("ended with 0\n"), said

    def test_it_never_requeues_it(self, cluster, tmp_path, config):
        signal = "(until grep -q . RUN/metrics.jsonl; do sleep 0.2; done; kill -USR1 $(cat pid)) & echo $$ >pid; "
        words = f"cd {tmp_path}; {signal.replace('RUN', 'ddp-*')} exec bash {ROOT}/jobscripts/ddp.job"
        env = {"SLIPWAY_CONFIG": config(4000), "SLIPWAY_LIB": str(ROOT / "jobscripts" / "lib")}
        said = self.run(cluster, tmp_path, "bash", "-c", words, **env)
        assert "an interactive allocation does not return to the queue" in said
        assert re.search(r"stopped at step \d+ .*; to continue: sbatch --nodes=2 ", said), said
        assert said.endswith("ended with 75\n"), said

    def test_outside_of_one(self, cluster):
        done = subprocess.run(
            ["bash", ROOT / "jobscripts" / "ddp.job"],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 78
        assert done.stderr == "ddp.job: this is no job of Slurm: submit it with sbatch, or run it inside salloc\n"

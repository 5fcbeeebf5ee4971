"""The cluster itself, and how jobs get onto it."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from support import status

HERE = Path(__file__).parent


def processes_of(folder):
    """Return the commands of all processes that were started for the cluster in ``folder``."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"CLUSTER={folder}\0".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has just ended
            continue
    return found


def test_no_process_is_left_where_the_test_run_is_killed(tmp_path):
    program = f"""
        import sys, time
        from pathlib import Path
        sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
        from conftest import Cluster
        cluster = Cluster(Path({str(tmp_path)!r}), Path({str(tmp_path)!r}))
        print("up", flush=True)
        time.sleep(600)
    """
    words = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout.readline() == "up\n"
        assert any("slurmctld" in command for command in processes_of(tmp_path))
        os.kill(run.pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while (left := processes_of(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def test_jobgen_submits_and_says_the_number_last(cluster, tmp_path, config):
    env = {
        "SLIPWAY_DEVICE": "cpu",
        "USE_CONTAINER": "0",
        "SLIPWAY_VENV": sys.prefix,
        "SLIPWAY_RUN_DIR": str(tmp_path / "run"),
    }
    job = ("jobgen", "submit", "ddp", "--site", "example", "--set", f"options.output={tmp_path}/log")
    said = cluster.run(*job, "--test-only", SLIPWAY_CONFIG=config(1), **env)
    assert said == ""  # Slurm answers on standard error
    number = cluster.run(*job, "--", "--seed", "7", SLIPWAY_CONFIG=config(1), **env).splitlines()[-1]
    fields = cluster.job(number, tmp_path / "log").wait()
    assert fields["JobState"] == "COMPLETED", (tmp_path / "log").read_text()
    assert "seed = 7" in (tmp_path / "run" / "config.toml").read_text()


def test_a_task_of_an_array_is_requeued_by_its_own_number(cluster, tmp_path, config):
    job = cluster.submit(
        "cpu.job",
        out=tmp_path / "x",
        sbatch=("--array=3-4",),
        SLIPWAY_CONFIG=config(40),
        SLIPWAY_RUN_DIR="",
        SLIPWAY_OUTPUT=str(tmp_path),
    )
    folder = tmp_path / f"cpu-{job.number}_4"
    deadline = time.monotonic() + 90
    while not (folder / "checkpoints" / "latest").exists():
        assert time.monotonic() < deadline, job.output
        time.sleep(0.2)
    cluster.run("scancel", "--batch", "--signal=USR1", f"{job.number}_4")
    tasks = {number: cluster.job(f"{job.number}_{number}", job.log).wait() for number in (3, 4)}
    assert [fields["JobState"] for fields in tasks.values()] == ["COMPLETED"] * 2, job.output
    assert [fields["Restarts"] for fields in tasks.values()] == ["0", "1"]
    assert [status(tmp_path / f"cpu-{job.number}_{number}")["attempt"] for number in (3, 4)] == [1, 2]

"""The cluster itself, and the submission of jobs to it."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from clusters import until
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


def test_killed_test_run_leaves_no_cluster_processes(tmp_path):
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
    assert until(lambda: not processes_of(tmp_path), limit=20) is not None, processes_of(tmp_path)


def test_array_task_is_requeued_by_its_own_job_id(cluster, tmp_path, config):
    job = cluster.submit(
        "cpu.job",
        out=tmp_path / "x",
        sbatch=("--array=3-4",),
        SLIPWAY_CONFIG=config(40),
        SLIPWAY_RUN_DIR="",
        SLIPWAY_OUTPUT=str(tmp_path),
    )
    folder = tmp_path / f"cpu-{job.number}_4"
    assert until((folder / "checkpoints" / "latest").exists, limit=90) is not None, job.output
    cluster.run("scancel", "--batch", "--signal=USR1", f"{job.number}_4")
    for number, restarts in ((3, "0"), (4, "1")):
        cluster.job(f"{job.number}_{number}", job.log).ends(JobState="COMPLETED", Restarts=restarts)
    assert [status(tmp_path / f"cpu-{job.number}_{number}")["attempt"] for number in (3, 4)] == [1, 2]

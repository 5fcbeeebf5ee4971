"""The committed scripts, unedited, on a real Slurm cluster of two nodes."""

import itertools
import json
import time
from pathlib import Path

import pytest

from clusters import rendered
from support import digest, last_step, status

FOREIGN = Path(__file__).parent / "foreign"
EPOCHS_OF_MINUTES = 400
"""Longer than the shortest time limit that Slurm knows."""


RANKS = {
    "ddp.job": 4,
    "ddp-ranks.job": 4,
    "ddp-mpirun.job": 4,
    "horovod-gloo.job": 4,
    "horovod.job": 4,
    "horovod-srun.job": 4,
    "single.job": 1,
    "cpu.job": 2,
    "ddp.pbs": 4,
    "horovod.pbs": 4,
}
SHORT = {
    ("ddp.job", "container"),
    ("ddp.job", "venv"),
    ("single.job", "container"),
    ("cpu.job", "venv"),
}
"""Pairs that `make test` runs; the product is `make prove`'s."""


def scripts():
    for script, way in itertools.product(RANKS, ("venv", "container")):
        marks = [] if (script, way) in SHORT else [pytest.mark.prove]
        yield pytest.param(script, RANKS[script], way, marks=marks, id=f"{script}-{way}")


@pytest.mark.parametrize(("script", "ranks", "way"), list(scripts()))
def test_each_script_trains_the_same_weights(request, cluster, tmp_path, config, alone, table, script, ranks, way):  # noqa: PLR0917 -- fixtures
    inside = request.getfixturevalue("image") if way == "container" else {}
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_CONFIG=config(2), **inside)
    fields, distance = job.proven(tmp_path / "run", alone, ranks=ranks)
    row = [fields["JobState"], f"{ranks} ranks", fields["NodeList"], fields["RunTime"], f"{distance:.1e}"]
    table(f"cluster: {script}, {way}", [[script, way, *row]])


def test_a_run_out_of_time_is_saved_requeued_and_ends_as_if_never_stopped(cluster, tmp_path, config):
    whole = cluster.submit("ddp.job", out=tmp_path / "whole", SLIPWAY_CONFIG=config(40))
    assert whole.wait()["JobState"] == "COMPLETED", whole.output
    job = cluster.submit("ddp.job", out=tmp_path / "run", SLIPWAY_CONFIG=config(40))
    job.until("epoch 2/40")
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)  # what --signal=B:USR1@180 does, in time for a test
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), job.output
    assert "resumed at step" in job.output
    latest = "checkpoints/latest"
    assert digest(tmp_path / "run" / latest) == digest(tmp_path / "whole" / latest)
    assert len(files_beside_checkpoints(tmp_path / "run")) <= 70 + 2 * (10 + 2), "as its header says"


def files_beside_checkpoints(run: Path) -> list[Path]:
    """Return what a run has left on the shared disk, of which administrators read in the script's header."""
    return [path for path in run.rglob("*") if path.is_file() and "checkpoints" not in path.relative_to(run).parts]


@pytest.mark.prove
def test_a_time_limit_too_short_is_warned_of_saved_and_requeued(cluster, tmp_path, config, table):
    """The real thing, minutes long: Slurm's own limit and its own warning, several times."""
    whole = cluster.submit("ddp.job", out=tmp_path / "whole", SLIPWAY_CONFIG=config(EPOCHS_OF_MINUTES))
    assert whole.wait(500)["JobState"] == "COMPLETED", whole.output
    short = ("--time=2", "--signal=B:USR1@30")  # Slurm looks every 30 s, so it comes 60 to 90 s after the start
    job = cluster.submit("ddp.job", out=tmp_path / "run", sbatch=short, SLIPWAY_CONFIG=config(EPOCHS_OF_MINUTES))
    fields = job.wait(600)
    assert fields["JobState"] == "COMPLETED", job.output
    assert int(fields["Restarts"]) >= 1
    said = [line for line in job.output.splitlines() if "out of time" in line or "resumed at step" in line]
    table("time limit of two minutes", [[line] for line in said])
    latest = "checkpoints/latest"
    assert digest(tmp_path / "run" / latest) == digest(tmp_path / "whole" / latest)


def test_the_bound_on_requeues_holds_and_the_run_can_be_continued(cluster, tmp_path, config):
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", out=out, SLIPWAY_CONFIG=config(400), SLIPWAY_MAX_REQUEUES="0")
    job.until("epoch 2/400")
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)
    fields = job.wait()
    assert (fields["JobState"], fields["ExitCode"], fields["Restarts"]) == ("FAILED", "75:0", "0"), job.output
    assert f"to continue: sbatch --nodes=2 {out}/job.sh" in job.output


OF_ANOTHER_JOB = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x1",
    "SLURM_GPU_BIND": "single:1", "SLURM_GPUS": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_CPUS_PER_GPU": "3",
    "SLURM_MEM_PER_CPU": "10", "SLURM_MEM_PER_GPU": "10", "SLURM_NTASKS": "9", "SLURM_NPROCS": "9",
    "SLURM_NTASKS_PER_GPU": "1", "SLURM_THREADS_PER_CORE": "1", "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_TRES_PER_TASK": "cpu:3", "SLURM_HINT": "nomultithread", "SLURM_STEP_GRES": "none", "SLURM_LABELIO": "1",
    "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "7", "SLURM_RESTART_COUNT": "3", "SLURM_HET_SIZE": "2",
}  # fmt: skip
"""What a job that is submitted from inside another one may inherit."""


@pytest.mark.prove
@pytest.mark.parametrize(
    ("script", "ranks"),
    [("ddp.job", 4), ("ddp-ranks.job", 4), ("horovod-srun.job", 4), ("split.job", 2), ("gpus-per-task", 4)],
)
def test_the_ranks_get_the_same_from_inside_another_job(cluster_with_memory, tmp_path, table, script, ranks):
    if script == "gpus-per-task":
        script = str(rendered(tmp_path, "ddp-ranks", "example", "gpu_request=gpus-per-task"))
    seen = []
    for name, env in (("clean", {}), ("inside", OF_ANOTHER_JOB)):
        job = cluster_with_memory.submit(
            script,
            out=tmp_path / name,
            sbatch=("--mem=1000",),
            SLIPWAY_SCRIPT=str(FOREIGN / "allocation.py"),
            **env,
        )
        assert job.wait(100)["JobState"] == "COMPLETED", job.output
        rows = [json.loads(line.partition("SEEN ")[2]) for line in job.output.splitlines() if "SEEN " in line]
        seen.append(sorted(rows, key=lambda row: row["rank"]))
    assert seen[0] == seen[1]
    assert [row["rank"] for row in seen[0]] == list(range(ranks))
    assert {row["gpus"] for row in seen[0]} == {"0,1"}
    assert {"mem=2000M" in row["tres"] for row in seen[0]} == {True}
    table(f"inside another job: {Path(script).name}", [[str(value) for value in row.values()] for row in seen[1]])


STANDSTILL = """
import os
if os.environ["RANK"] == "0":
    with open("{RUN_DIR}/verdict.{TRAINER_ATTEMPT}".format(**os.environ), "w") as file:
        file.write("stopped 7 time-limit\\n")
"""


def test_a_run_that_gains_no_step_is_not_requeued(cluster, tmp_path):
    (tmp_path / "standstill.py").write_text(STANDSTILL)
    job = cluster.submit("ddp-ranks.job", out=tmp_path / "run", SLIPWAY_SCRIPT=str(tmp_path / "standstill.py"))
    fields = job.wait()
    assert (fields["JobState"], fields["ExitCode"], fields["Restarts"]) == ("FAILED", "75:0", "0"), job.output


@pytest.mark.parametrize("way", ["scancel", "STOP"])
def test_a_user_ends_it_for_good(cluster, tmp_path, config, way):
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", out=out, SLIPWAY_CONFIG=config(400))
    job.until("epoch 2/400")
    if way == "scancel":
        cluster.run("scancel", job.number)
    else:
        (out / "STOP").write_text("user\n")
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("CANCELLED" if way == "scancel" else "FAILED", "0"), job.output
    deadline = time.monotonic() + 30  # the ranks may save after Slurm calls the job cancelled
    while status(out)["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.2)
    said = status(out)
    assert (said["state"], said["reason"]) == ("stopped", "signal" if way == "scancel" else "user")
    assert said["step"] >= 23


@pytest.mark.prove
def test_a_preempted_run_comes_back_once(cluster, tmp_path, config):
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", out=out, SLIPWAY_CONFIG=config(40))
    job.until("epoch 2/40")
    words = ("--partition=urgent", "--nodes=2", "--exclusive", "--wrap=sleep 1", f"--output={tmp_path}/urgent.log")
    cluster.run("sbatch", *words)
    fields = job.wait()
    assert (fields["JobState"], fields["Restarts"]) == ("COMPLETED", "1"), job.output
    assert job.output.count("resumed at step") == 1
    assert status(out)["attempt"] == 2


@pytest.mark.prove
def test_a_lost_node_is_survived(cluster, tmp_path, config):
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", out=out, SLIPWAY_CONFIG=config(40))
    job.until("epoch 2/40")
    cluster.control("kill", "node2")
    deadline = time.monotonic() + 90
    while "down" not in cluster.run("sinfo", "--noheader", "--nodes=node2", "--format=%T"):  # it boots no sooner
        assert time.monotonic() < deadline, "Slurm has not noticed"
        time.sleep(0.5)
    cluster.control("boot", "node2")
    fields = job.wait()
    assert fields["JobState"] == "COMPLETED", job.output
    assert last_step(out) == 40 * 23
    assert status(out)["start_step"] > 0


@pytest.mark.prove
def test_two_jobs_share_the_nodes(cluster, tmp_path, config):
    half = ("--gpus-per-node=1", "--cpus-per-task=4")
    jobs = [
        cluster.submit("ddp.job", out=tmp_path / name, sbatch=half, SLIPWAY_CONFIG=config(10)) for name in ("a", "b")
    ]
    fields = [job.wait() for job in jobs]
    assert [field["JobState"] for field in fields] == ["COMPLETED"] * 2, "\n".join(job.output for job in jobs)
    assert fields[0]["NodeList"] == fields[1]["NodeList"] == "node[1-2]"
    assert max(field["StartTime"] for field in fields) < min(field["EndTime"] for field in fields)


@pytest.mark.parametrize("script", ["ddp.job", pytest.param("ddp-ranks.job", marks=pytest.mark.prove)])
def test_a_script_that_knows_nothing_of_this_project_runs_too(cluster, tmp_path, script):
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_SCRIPT=str(FOREIGN / "plain_ddp.py"))
    assert job.wait()["JobState"] == "COMPLETED", job.output
    assert "4 ranks, final loss 0.0000" in job.output

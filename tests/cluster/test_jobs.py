"""The committed scripts, unedited, on a real Slurm cluster of two nodes."""

import functools
import itertools
import json
from pathlib import Path

import pytest

from clusters import rendered, until
from session_runs import SCRIPTS, content
from support import digest, last_step, status

prove = functools.partial(pytest.param, marks=pytest.mark.prove)
FOREIGN = Path(__file__).parent / "foreign"
EPOCHS_OF_MINUTES = 400
"""Longer than Slurm's shortest time limit."""


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
def test_every_script_trains_reference_weights(request, cluster, tmp_path, config, alone, table, script, ranks, way):  # noqa: PLR0917 -- fixtures
    inside = request.getfixturevalue("image") if way == "container" else {}
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_CONFIG=config(2), **inside)
    fields, distance = job.proven(tmp_path / "run", alone, ranks=ranks)
    row = [fields["JobState"], f"{ranks} ranks", fields["NodeList"], fields["RunTime"], f"{distance:.1e}"]
    table(f"cluster: {script}, {way}", [[script, way, *row]])


OVER_MPI = ("horovod.job", "horovod-gloo.job", "ddp-mpirun.job")
SESSION = {"SLIPWAY_SCRIPT": str(SCRIPTS / "classifier.py")}
HOROVOD = {
    "SLIPWAY_SCRIPT": str(SCRIPTS / "under_horovod.py"),
    "BACKEND": "horovod",
    "HOROVOD_FUSION_THRESHOLD": "0",
}
"""Fusion would sum the gradients of four ranks in the order of their arrival."""


@pytest.mark.parametrize(
    ("script", "settings", "container"),
    [
        pytest.param("ddp.job", {}, False, id="trainer"),
        prove("ddp.job", SESSION, False, id="session"),
        prove("ddp-ranks.job", SESSION, False, id="session-ddp-ranks"),
        prove("ddp.job", HOROVOD, False, id="session-horovod"),
        prove("ddp.job", SESSION, True, id="session-container"),
        prove("ddp.job", HOROVOD, True, id="session-horovod-container"),
    ],
)
def test_run_requeued_at_time_limit_matches_uninterrupted_run(  # noqa: PLR0917 -- fixtures
    request, cluster, tmp_path, config, script, settings, container
):
    flags = ["--epochs", "60"] if settings else []
    settings = {**(settings or {"SLIPWAY_CONFIG": config(40)})}
    settings |= request.getfixturevalue("image") if container else {}
    cluster.submit(script, *flags, out=tmp_path / "whole", **settings).ends()
    job = cluster.submit(script, *flags, out=tmp_path / "run", **settings)
    job.until("step 50 " if flags else "epoch 2/40")
    cluster.run("scancel", "--batch", "--signal=USR1", job.number)  # like --signal=B:USR1@180, but in time for a test
    job.ends(JobState="COMPLETED", Restarts="1")
    assert "resumed at step" in job.output
    if flags:
        assert content(tmp_path / "run") == content(tmp_path / "whole")
    else:
        assert_same_weights(tmp_path)
        assert len(files_beside_checkpoints(tmp_path / "run")) <= 80 + 2 * (10 + 2), "as its header says"


def assert_same_weights(folder: Path) -> None:
    run, whole = (digest(folder / name / "checkpoints" / "latest") for name in ("run", "whole"))
    assert run == whole


def files_beside_checkpoints(run: Path) -> list[Path]:
    """Return the files that a run has left on the shared disk, which the script's header describes."""
    return [path for path in run.rglob("*") if path.is_file() and "checkpoints" not in path.relative_to(run).parts]


@pytest.mark.prove
def test_slurm_time_limit_signal_saves_and_requeues_run(cluster, tmp_path, config, table):
    """Slurm's own limit and its own warning, several times; takes minutes."""
    cluster.submit("ddp.job", out=tmp_path / "whole", SLIPWAY_CONFIG=config(EPOCHS_OF_MINUTES)).ends(limit=500)
    short = ("--time=2", "--signal=B:USR1@30")  # Slurm checks every 30 s, so it comes 60 to 90 s after the start
    job = cluster.submit("ddp.job", out=tmp_path / "run", sbatch=short, SLIPWAY_CONFIG=config(EPOCHS_OF_MINUTES))
    fields = job.ends(limit=600)
    assert int(fields["Restarts"]) >= 1
    said = [line for line in job.output.splitlines() if "out of time" in line or "resumed at step" in line]
    table("time limit of two minutes", [[line] for line in said])
    assert_same_weights(tmp_path)


@pytest.mark.parametrize(
    ("script", "requeues"),
    [("ddp.job", 0), *(prove(script, 1) for script in OVER_MPI)],
)
def test_job_is_requeued_at_most_max_requeues_times(cluster, tmp_path, config, script, requeues):
    out = tmp_path / "run"
    job = cluster.submit(script, out=out, SLIPWAY_CONFIG=config(4000), SLIPWAY_MAX_REQUEUES=str(requeues))
    for attempt in range(1, requeues + 2):
        job.until("samples/s", times=2 * attempt)
        cluster.run("scancel", "--batch", "--signal=USR1", job.number)
        if attempt <= requeues:
            job.until("resumed at step", times=attempt)
    job.ends(JobState="FAILED", ExitCode="75:0", Restarts=str(requeues))
    assert f"to continue: sbatch --nodes=2 {out}/job.sh" in job.output
    said = status(out)
    assert said["step"] > said["start_step"]
    assert (said["start_step"] > 0) == (requeues > 0)


OF_ANOTHER_JOB = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_CPU_BIND_LIST": "0x1",
    "SLURM_GPU_BIND": "single:1", "SLURM_GPUS": "1", "SLURM_GPUS_PER_TASK": "1", "SLURM_CPUS_PER_GPU": "3",
    "SLURM_MEM_PER_CPU": "10", "SLURM_MEM_PER_GPU": "10", "SLURM_NTASKS": "9", "SLURM_NPROCS": "9",
    "SLURM_NTASKS_PER_GPU": "1", "SLURM_THREADS_PER_CORE": "1", "SLURM_DISTRIBUTION": "cyclic",
    "SLURM_TRES_PER_TASK": "cpu:3", "SLURM_HINT": "nomultithread", "SLURM_STEP_GRES": "none", "SLURM_LABELIO": "1",
    "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "7", "SLURM_RESTART_COUNT": "3", "SLURM_HET_SIZE": "2",
}  # fmt: skip
"""Variables that a job submitted from another job may inherit."""


@pytest.mark.prove
@pytest.mark.parametrize(
    ("script", "ranks"),
    [("ddp.job", 4), ("ddp-ranks.job", 4), ("horovod-srun.job", 4), ("split.job", 2), ("gpus-per-task", 4)],
)
def test_job_submitted_inside_another_job_gets_same_allocation(cluster_with_memory, tmp_path, table, script, ranks):
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
        job.ends(limit=100)
        rows = [json.loads(line.partition("SEEN ")[2]) for line in job.output.splitlines() if "SEEN " in line]
        seen.append(sorted(rows, key=lambda row: row["rank"]))
    assert seen[0] == seen[1]
    assert [row["rank"] for row in seen[0]] == list(range(ranks))
    assert {row["gpus"] for row in seen[0]} == {"0,1"}
    assert {"mem=2000M" in row["tres"] for row in seen[0]} == {True}
    table(f"inside another job: {Path(script).name}", [[str(value) for value in row.values()] for row in seen[1]])


RUNS: dict[str, tuple] = {
    "ddp.job": ("ddp.job", {}),
    "ddp, node by node": (("ddp", "example", "placement=node-by-node"), {}),
    "session": ("ddp.job", SESSION),
    **{script: (script, {}) for script in OVER_MPI},
}
ENDED_BY_USER = {("ddp.job", "scancel"), ("ddp, node by node", "scancel"), ("session", "scancel"), ("session", "STOP")}
"""Pairs that `make test` runs; the product is `make prove`'s."""


def ended_by_user():
    for case in itertools.product(RUNS, ("scancel", "STOP")):
        yield pytest.param(*case, marks=[] if case in ENDED_BY_USER else [pytest.mark.prove])


@pytest.mark.parametrize(("run", "way"), list(ended_by_user()))
def test_run_ended_by_user_saves_and_is_not_requeued(cluster, tmp_path, config, run, way):
    out, (script, settings) = tmp_path / "run", RUNS[run]
    path = script if isinstance(script, str) else rendered(tmp_path, *script)
    # a worker beside each rank of the session also gets the signals
    flags = ["--epochs", "400", "--workers", "1"] if settings else []
    job = cluster.submit(path, *flags, out=out, **(settings or {"SLIPWAY_CONFIG": config(4000)}))
    job.until("step 50 " if settings else "epoch 2/")
    if way == "scancel":
        cluster.run("scancel", job.number)
    else:
        (out / "STOP").write_text("user\n")
    job.ends(JobState="CANCELLED" if way == "scancel" else "FAILED", Restarts="0")
    until(lambda: status(out)["state"] != "running", limit=60)  # ranks may save after Slurm reports the cancellation
    said = status(out)
    assert (said["state"], said["requeue"]) == ("stopped", False), job.output
    assert said["reason"] in ({"user"} if way == "STOP" else {"signal", "user"} if script in OVER_MPI else {"signal"})
    assert said["step"] >= (50 if settings else 23)
    assert cluster.left_over(limit=60) == []


@pytest.mark.prove
def test_preempted_run_is_requeued_once_and_resumes(cluster, tmp_path, config):
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", out=out, SLIPWAY_CONFIG=config(40))
    job.until("epoch 2/40")
    words = ("--partition=urgent", "--nodes=2", "--exclusive", "--wrap=sleep 1", f"--output={tmp_path}/urgent.log")
    cluster.run("sbatch", *words)
    job.ends(JobState="COMPLETED", Restarts="1")
    assert job.output.count("resumed at step") == 1
    assert status(out)["attempt"] == 2


@pytest.mark.prove
def test_run_that_loses_node_is_requeued_and_resumes(cluster, tmp_path, config):
    out = tmp_path / "run"
    job = cluster.submit("ddp.job", out=out, SLIPWAY_CONFIG=config(40))
    job.until("epoch 2/40")
    cluster.control("kill", "node2")
    state = ("sinfo", "--noheader", "--nodes=node2", "--format=%T")
    assert until(lambda: "down" in cluster.run(*state), limit=90) is not None, "Slurm has not noticed"
    cluster.control("boot", "node2")
    job.ends()
    assert last_step(out) == 40 * 23
    assert status(out)["start_step"] > 0


@pytest.mark.prove
def test_two_jobs_share_nodes_at_same_time(cluster, tmp_path, config):
    half = ("--gpus-per-node=1", "--cpus-per-task=4")
    jobs = [
        cluster.submit("ddp.job", out=tmp_path / name, sbatch=half, SLIPWAY_CONFIG=config(10)) for name in ("a", "b")
    ]
    fields = [job.ends() for job in jobs]
    assert fields[0]["NodeList"] == fields[1]["NodeList"] == "node[1-2]"
    assert max(field["StartTime"] for field in fields) < min(field["EndTime"] for field in fields)


@pytest.mark.parametrize("script", ["ddp.job", pytest.param("ddp-ranks.job", marks=pytest.mark.prove)])
def test_plain_ddp_script_trains_with_four_ranks(cluster, tmp_path, script):
    job = cluster.submit(script, out=tmp_path / "run", SLIPWAY_SCRIPT=str(FOREIGN / "plain_ddp.py"))
    job.ends()
    assert "4 ranks, final loss 0.0000" in job.output

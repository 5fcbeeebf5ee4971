"""A client requests nodes through Dask and trains on them, on a real Slurm and a real OpenPBS."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from clusters import LIBRARY, REPORT, seen_by_ranks, until
from dask_client import DaskClient
from jobgen.cli import main
from messages import assert_names, assert_warning
from support import digest, status

SITE = {
    "slurm": 'name = "here"\ngpus_per_node = 2\n[options]\npartition = "gpu"\naccount = "example"\n',
    "pbs": 'name = "here"\nscheduler = "pbs"\ngpus_per_node = 2\n[options]\nq = "gpu"\n',
}
FIND = {"slurm": ("squeue", "--noheader", "--format=%A %T"), "pbs": ("/opt/pbs/bin/qselect",)}
CONFIG = """
[data]
dataset = "imagefolder"
data_dir = "{data}"
image_size = 16
workers = 2
[model]
arch = "mlp"
[train]
epochs = {epochs}
batch_size = 8
[run]
log_interval = 1
"""
OPENPBS = pytest.param("pbs", marks=[pytest.mark.prove])


@pytest.fixture(params=["slurm", OPENPBS])
def scheduler(request):
    if request.param == "pbs":
        request.getfixturevalue("openpbs")
    return request.param


@pytest.fixture
def folder(cluster, request):
    """Return a folder of root that all nodes share, with a name that Dask's shell command line can contain."""
    folder = cluster.folder / "root" / re.sub(r"\W+", "-", request.node.name).strip("-")
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def client(cluster, scheduler, folder):
    """Return a function that starts the client of a rendered script with a named run folder."""
    started = []

    def client(name, *arguments, settings=(), path=None, **env):
        if path is None:
            (folder / "here.toml").write_text(SITE[scheduler])
            path = folder / "dask.sh"
            words = [word for setting in settings for word in ("--set", setting)]
            assert main(["render", "dask", "--site", str(folder / "here.toml"), *words, "--output", str(path)]) == 0
        env["PATH"] = f"/opt/pbs/bin:{env.get('PATH', os.environ['PATH'])}"
        started.append(DaskClient(cluster, path, *arguments, out=folder / name, **env))
        return started[-1]

    yield client
    for one in started:
        one.close()


@pytest.fixture(scope="module")
def data(cluster):
    """Return a folder of 64 images in two classes."""
    folder, generator = cluster.folder / "images", np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (folder / kind).mkdir(parents=True)
        for number in range(32):
            pixels = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{number}.png")
    return folder


@pytest.fixture
def config(data, folder):
    def config(epochs):
        path = folder / f"{epochs}.toml"
        path.write_text(CONFIG.format(data=data, epochs=epochs))
        return str(path)

    return config


@pytest.fixture
def torchrun(folder, config):
    """Return a function that trains four ranks with torchrun on this machine and returns the digest of the weights."""

    def torchrun(epochs):
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "-m", "trainer"]
        flags = ["--backend", "ddp", "--device", "cpu", "--output-dir", folder / "reference", "--threads", "1"]
        subprocess.run([*words, config(epochs), *flags], check=True, capture_output=True)
        return digest(folder / "reference" / "checkpoints" / "latest")

    return torchrun


@pytest.fixture
def queue(cluster, scheduler):
    """Return a function that returns the scheduler's jobs."""

    def queue():
        rows = cluster.run(*FIND[scheduler]).splitlines()
        return [row.split()[0] for row in rows if "COMPLETING" not in row]

    return queue


@pytest.fixture
def nothing_is_left(cluster, queue):
    """Return a function that waits until no job and no process of one remains, and returns the time taken."""

    def nothing_is_left(limit):
        def left():
            return queue() + cluster.processes("trainer|dask|torchrun", nodes=("head", "node1", "node2"))

        taken = until(lambda: not left(), limit=limit, pause=0.5)
        assert taken is not None, left()
        return taken

    return nothing_is_left


THREADS = {"OMP_NUM_THREADS": "1"}


def test_dask_run_matches_torchrun_and_releases_its_nodes(client, config, torchrun, nothing_is_left, folder):
    one = client("run", SLIPWAY_CONFIG=config(3), **THREADS)
    said = one.wait(0)
    nothing_is_left(40)
    assert "node 2 of at most 2: node2" in said
    assert json.loads((folder / "run/run.json").read_text())["world_size"] == 4
    assert digest(folder / "run/checkpoints/latest") == torchrun(3)
    assert (folder / "run/figures/curves.png").exists()
    assert "trained on" in (folder / "run/logs/1/stdout.log").read_text()
    assert not [*(folder / "run/logs/1/dask").glob("*.pem")]  # the key is removed with the attempt


@pytest.mark.prove
def test_killed_dask_worker_ends_attempt_and_next_resumes_bitwise(client, config, torchrun, folder):
    flags = ("--checkpoint-interval", "5")
    one = client("run", *flags, SLIPWAY_CONFIG=config(12), **THREADS)
    one.until("epoch 3/")
    one.kill("node2", "distributed.cli.dask_worker")
    said = one.wait(1, 75)  # 75: its ranks received SIGTERM and saved
    assert_warning(said, "node-lost", "node 1 (tls://10.77.0.12:")
    again = client("run", path=folder / "run/job.sh", **THREADS, SLIPWAY_RUN_DIR="")
    assert "resumed at step" in again.wait(0)
    assert digest(folder / "run/checkpoints/latest") == torchrun(12)


@pytest.mark.prove
def test_dask_refuses_connections_without_key(client, config, cluster, folder):
    one = client("run", SLIPWAY_CONFIG=config(400), **THREADS)
    one.until("epoch 1/")
    files = one.folder()
    keys = [*files.glob("*.pem")]
    assert len(keys) == 3
    assert not any(path.stat().st_mode & 0o077 for path in (files, *keys))
    address = one.connection()["scheduler"]
    assert address.startswith("tls://10.77.0.1:")
    script = folder / "intruder.py"
    script.write_text(
        "import asyncio, sys\n"
        "from distributed import Client, Security\n"
        "async def enter(address, security):\n"
        "    try:\n"
        "        entering = Client(address, security=security, asynchronous=True, timeout=5)\n"
        "        await asyncio.wait_for(entering, 8)\n"
        "    except Exception as error:\n"
        "        return f'refused: {type(error).__name__}'\n"
        "    return 'let in'\n"
        "async def main():\n"
        "    tries = [(a, s) for a in sys.argv[1:] for s in (None, Security.temporary())]\n"
        "    print(*await asyncio.gather(*(enter(*one) for one in tries)), sep='\\n', flush=True)\n"
        "    sys.stdout.close()\n"
        "    __import__('os')._exit(0)\n"
        "asyncio.run(main())\n"
    )
    addresses = [address, address.replace("tls", "tcp")]
    said = cluster.run(sys.executable, str(script), *addresses).splitlines()
    assert [line.partition(":")[0] for line in said] == ["refused"] * 4, said
    for node, *words in (("head", "trainer.launch.dask nodes"), ("node1", "dask_worker")):
        pid = one.pids(node, *words)[-1]
        rows = cluster.control("on", node, "ss", "--listening", "--tcp", "--numeric", "--processes").splitlines()
        mine = [row.split()[3].rsplit(":", 1) for row in rows if f"pid={pid}," in row]
        outside = {port for host, port in mine if host not in {"127.0.0.1", "[::1]"}}
        assert len(mine) >= len(outside) == 1, f"only Dask's own port is reached from elsewhere: {mine}"
    one.signal("TERM")
    one.wait(75)


@pytest.mark.parametrize(
    "killed",
    ["the process group", *(pytest.param(name, marks=pytest.mark.prove) for name in ("the script", "its Dask"))],
)
def test_killed_client_leaves_no_jobs_or_processes(client, config, nothing_is_left, queue, table, killed, scheduler):  # noqa: PLR0917 -- fixtures
    one = client(
        "run", SLIPWAY_CONFIG=config(400), SLIPWAY_NODES="3", SLIPWAY_MIN_NODES="2", SLIPWAY_WAIT_SECONDS="5", **THREADS
    )
    one.until("epoch 1/")
    assert len(queue()) == 2
    kill(one, killed)
    running = nothing_is_left(60)
    waiting = client("waits", SLIPWAY_CONFIG=config(400), SLIPWAY_NODES="5", SLIPWAY_WAIT_SECONDS="600", **THREADS)
    waiting.until("2 of 5 nodes", limit=60)
    assert len(queue()) == 5
    kill(waiting, killed)
    queued = nothing_is_left(60)
    table(
        f"Dask under {scheduler}: SIGKILL to {killed}", [["running", f"{running:.0f} s"], ["queued", f"{queued:.0f} s"]]
    )


def kill(client, what):
    if what == "its Dask":
        client.kill("head", "trainer.launch.dask nodes")
        client.process.wait(120)
    else:
        client.signal("KILL", group=what == "the process group")


@pytest.mark.prove
def test_dask_run_requires_minimum_nodes_after_wait(client, config, nothing_is_left, queue):
    one = client("few", SLIPWAY_CONFIG=config(3), SLIPWAY_NODES="3", SLIPWAY_WAIT_SECONDS="8", **THREADS)
    said = one.wait(75)
    assert_names(said, "error[nodes-missing]", "2 of 3 ", " 8 s ", "(SLIPWAY_WAIT_SECONDS)", "SLIPWAY_MIN_NODES")
    nothing_is_left(40)
    one = client(
        "enough",
        SLIPWAY_CONFIG=config(3),
        SLIPWAY_NODES="3",
        SLIPWAY_MIN_NODES="1",
        SLIPWAY_WAIT_SECONDS="8",
        **THREADS,
    )
    one.until(" 2 of 3 nodes; ")
    one.until("epoch 1/")
    assert len(queue()) <= 2
    one.wait(0)


@pytest.mark.prove
def test_jobs_that_end_before_worker_connects_end_wait(client, config, nothing_is_left):
    settings = ("interface=none0",)  # no node has it
    one = client("run", settings=settings, SLIPWAY_CONFIG=config(3), SLIPWAY_WAIT_SECONDS="600", **THREADS)
    said = one.wait(78)
    assert_names(said, "error[nodes-lost]", " 0 ", " 2 ", "SLIPWAY_MIN_NODES", "'none0'")
    nothing_is_left(40)


@pytest.mark.prove
def test_time_limit_of_dask_nodes_requeues_run(client, config, torchrun, folder, table):
    settings = ("minutes=1", "save_seconds=20")
    one = client("run", settings=settings, SLIPWAY_CONFIG=config(200), **THREADS)
    said = one.wait(0, limit=800)
    assert_warning(said, "requeued", "step ")
    assert "resumed at step" in said
    assert digest(folder / "run/checkpoints/latest") == torchrun(200)
    table(
        "Dask: the nodes' time",
        [[line] for line in said.splitlines() if "warning[requeued]" in line or "resumed" in line],
    )


@pytest.mark.prove
def test_ctrl_c_saves_and_releases_nodes(client, config, nothing_is_left, folder):
    one = client("run", SLIPWAY_CONFIG=config(400), **THREADS)
    one.until("epoch 1/")
    one.signal("INT", group=True)
    said = one.wait(75)
    assert f"to continue: bash {folder}/run/job.sh" in said
    assert status(folder / "run")["state"] == "stopped"
    nothing_is_left(40)


@pytest.mark.prove
@pytest.mark.parametrize("scheduler", ["slurm"], indirect=True)
def test_dask_client_runs_as_small_job(cluster, config, torchrun, nothing_is_left, folder):
    (folder / "here.toml").write_text(SITE["slurm"])
    assert main(["render", "dask", "--site", str(folder / "here.toml"), "--output", str(folder / "dask.sh")]) == 0
    job = cluster.submit(
        str(folder / "dask.sh"),
        out=folder / "run",
        sbatch=("--nodes=1", "--cpus-per-task=1", "--time=10", "--account=example"),
        SLIPWAY_CONFIG=config(3),
        SLIPWAY_LIB=str(LIBRARY),
        **THREADS,
    )
    job.ends()
    nothing_is_left(40)
    assert json.loads((folder / "run/run.json").read_text())["world_size"] == 4
    assert digest(folder / "run/checkpoints/latest") == torchrun(3)


def test_user_script_is_launched_with_planned_ranks(client):
    one = client("run", SLIPWAY_SCRIPT=REPORT)
    assert seen_by_ranks(one.wait(0), ranks=4) == {(4, "ddp", False)}


def test_ranks_run_in_image_and_client_outside(client, image):
    one = client("run", SLIPWAY_SCRIPT=REPORT, **image)
    assert seen_by_ranks(one.wait(0), ranks=4) == {(4, "ddp", True)}

"""The Dask client's script from end to end: two jobs on this machine stand for two nodes (tests/slurm_here.py)."""

import json
import platform
import re
import sys
import time

import pytest

from jobgen.cli import main
from messages import slugs
from slurm_here import SlurmHere
from support import DIGITS, ROOT, digest, started, train

FLAGS = ["--arch", "mlp", "--epochs", "2", "--no-figures"]
SETTINGS = ("interface=lo", "device=cpu", "nodes=2", "ranks_per_node=2", "cpus_per_gpu=1")


@pytest.fixture
def slurm(tmp_path):
    slurm = SlurmHere(tmp_path / "slurm")
    yield slurm
    slurm.close()


@pytest.fixture
def client(tmp_path, monkeypatch, slurm):
    """Return a function that runs a rendered script to its end and returns its output."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "here.toml").write_text('name = "here"\n')
    words = [word for setting in SETTINGS for word in ("--set", setting)]
    script = tmp_path / "dask.sh"
    assert main(["render", "dask", "--site", str(tmp_path / "here.toml"), *words, "--output", str(script)]) == 0

    def client(*arguments, **env):
        settings = {
            "PATH": slurm.path,
            "SLIPWAY_LIB": str(ROOT / "jobscripts" / "lib"),
            "SLIPWAY_OUTPUT": str(tmp_path / "runs"),
            "SLIPWAY_LOCAL_DISK": str(tmp_path),
            "SLIPWAY_VENV": sys.prefix,
            "USE_CONTAINER": "0",
            "MASTER_ADDR": "0.0.0.0",  # noqa: S104 -- this machine; a job of several nodes refuses 127.0.0.1
            "GLOO_SOCKET_IFNAME": "lo",
        }
        with started(["bash", str(script), *arguments], tmp_path / "log", **settings, **env) as launch:
            code = launch.wait()
        assert code == 0, launch.output
        deadline = time.monotonic() + 60
        while slurm.running and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(slurm.submitted) == 2
        assert slurm.running == [], "the nodes are released"
        (run,) = (tmp_path / "runs").iterdir()
        assert re.fullmatch(rf"dask-\d{{8}}-\d{{6}}-{re.escape(platform.node().partition('.')[0])}-\d+", run.name)
        return launch.output, run

    return client


def test_dask_script_trains_on_requested_nodes_and_releases_them(client, tmp_path):
    said, run = client(*FLAGS, SLIPWAY_CONFIG=str(DIGITS))
    assert "node 2 of at most 2: " in said
    assert "4 rank(s) on cpu" in said
    assert json.loads((run / "run.json").read_text())["world_size"] == 4
    assert "trained on" in (run / "logs" / "1" / "stdout.log").read_text()
    train("torchrun", 4, tmp_path / "reference", *FLAGS)
    found, reference = (digest(path / "checkpoints" / "latest") for path in (run, tmp_path / "reference"))
    assert found == reference


def test_dask_script_starts_user_script_on_each_rank(client, tmp_path):
    script = tmp_path / "mine.py"
    script.write_text(
        "import gc, os, torch, torch.distributed as dist\n"
        'dist.init_process_group("gloo")\n'
        "total = torch.ones(1)\n"
        "dist.all_reduce(total)\n"
        "print(f'joined as {dist.get_rank()} of {int(total)} over {dist.get_backend()},', os.environ['NODE_RANK'])\n"
        "gc.collect()\n"
        "dist.destroy_process_group()\n"
    )
    said, _ = client(SLIPWAY_SCRIPT=str(script))
    joined = sorted(re.findall("joined as .*", said))
    assert joined == [f"joined as {rank} of 4 over gloo, {rank // 2}" for rank in range(4)]
    assert "ranks-not-connected" not in slugs(said)

"""How ``--nproc-per-node`` starts its ranks: it forks if that is safe."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from messages import assert_error, refused
from slipway.base.stop import SIGNALS
from trainer.config.settings import Settings
from trainer.launch.spawn import _run_in_fork, _start

ASK = "from trainer.launch.spawn import _import_for_ranks; print(_import_for_ranks().get_start_method())"
THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start();"
OPERATION = "import torch; torch.set_num_threads(2); torch.ones(1 << 20).sum();"


@pytest.mark.parametrize(
    ("before", "method"),
    [("", "fork"), (THREAD, "spawn"), pytest.param(OPERATION, "spawn", marks=pytest.mark.slow)],
)
def test_ranks_are_forked_only_if_parent_has_single_thread(before, method):
    found = subprocess.run(
        [sys.executable, "-c", before + ASK], check=False, capture_output=True, text=True, timeout=600
    )
    assert (found.stdout, found.stderr) == (f"{method}\n", "")


def test_started_ranks_are_killed_if_one_cannot_start(monkeypatch):
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=time.sleep, args=(60,)) for _ in range(3)]

    def fail():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(ranks[2], "start", fail)
    with refused("cannot-start-rank", " 2: ", "Resource temporarily unavailable"):
        _start(ranks)
    assert [rank.exitcode for rank in ranks[:2]] == [-signal.SIGKILL] * 2
    assert not {*SIGNALS} & signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_rank_stopped_before_joining_still_raises_config_error():
    """Another rank was refused first, so the parent sends SIGTERM to this one, which may be slower."""
    code = """
import os, signal
from slipway.base.environment import read_environment
from slipway.base.stop import StopRequest
from trainer.config.settings import Launch, ModelConfig, Settings
from trainer.parallel.strategy import connect
request = StopRequest()
request.listen()
os.kill(os.getpid(), signal.SIGTERM)
settings = Settings(model=ModelConfig(sync_bn=True), launch=Launch(backend="ddp", device="cpu", init_method="file:///x"))
connect(settings, read_environment(os.environ), request)
"""
    ranked = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TRAINER_SPAWNED": "1"}
    rank = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | ranked,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert rank.returncode == 1
    assert "ConfigError" in rank.stderr.splitlines()[-1]


RANKS = """
import sys, time
from pathlib import Path
from slipway.base.environment import read_environment
from slipway.base.stop import StopRequest
from trainer.config.settings import Launch, Settings
from trainer.config.errors import ConfigError
import trainer.launch.spawn

def waits(request, environment):
    if environment.local_rank == 1:
        raise ConfigError("bad-value", "refused")
    with request.exit_on_request("rank"):
        time.sleep(600)

def fails_because_of_it(request, environment, seconds=0.0):
    if environment.local_rank == 1:
        time.sleep(seconds)
        raise ConfigError("bad-value", "refused")
    raise RuntimeError("lost contact")

def fails_before_it(request, environment):
    fails_because_of_it(request, environment, 1.0)

def saves(request, environment):
    if environment.local_rank == 1:
        raise RuntimeError("a fault")
    while not request.reason:
        time.sleep(0.1)
    time.sleep(2)
    Path("saved").touch()
    return 75

launch = Launch(nproc_per_node=2, device="cpu")
trainer.launch.spawn.GRACE = 900.0
for work in waits, fails_because_of_it, fails_before_it, saves:
    began = time.monotonic()
    do = lambda _, *rest: work(*rest)
    code = trainer.launch.spawn.spawn(do, Settings(launch=launch), StopRequest(), read_environment({}))
    print(code, time.monotonic() - began, flush=True)
"""


def test_first_failed_rank_sets_exit_code_and_stops_others(tmp_path):
    """In one process, because importing what its forks share takes seconds."""
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=600
    )
    waits, *refused, saves = (line.split() for line in done.stdout.splitlines())
    assert waits[0] == "78"
    assert float(waits[1]) < 300  # regression: 30 s, after which the others were killed
    assert [code for code, _ in refused] == ["78", "78"]  # not one that failed because of it, before or after
    assert saves[0] == "1"
    assert (tmp_path / "saved").exists()  # by the one that was waited for


TWO_RANKS = """
import time
from pathlib import Path
from slipway.base.environment import read_environment
from slipway.base.stop import StopRequest
from trainer.config.errors import ConfigError
from trainer.config.settings import Launch, Settings
from trainer.launch.spawn import spawn

def work(_settings, request, environment):
    rank = environment.local_rank
    if {refused} == rank:
        raise ConfigError("bad-value", "refused")
    with request.exit_on_request("rank"):
        time.sleep({seconds})
    Path(f"rank{{rank}}").touch()
    return 0

launch = Launch(nproc_per_node=2, device="cpu")
print(spawn(work, Settings(launch=launch), StopRequest(), read_environment({{}})))
"""
"""Two ranks: number ``refused`` is refused, the others sleep and then leave a file."""


def run_ranks(folder, **values):
    """Run the two ranks in ``folder``; return the exit code of spawn, and the files that ranks have left."""
    (folder / "ranks.py").write_text(TWO_RANKS.format(**values))
    said = subprocess.check_output([sys.executable, "ranks.py"], cwd=folder, text=True, timeout=600)
    return int(said), sorted(path.name for path in folder.glob("rank?"))


def test_launcher_waits_for_the_last_rank(tmp_path):
    assert run_ranks(tmp_path, refused=None, seconds="3 * rank") == (0, ["rank0", "rank1"])


def test_other_rank_is_ended_after_one_has_failed(tmp_path):
    assert run_ranks(tmp_path, refused=1, seconds="20") == (78, [])


SEES = """
import sys, torch
torch.cuda.device_count = lambda: 1
from trainer.__main__ import main
sys.exit(main())
"""
"""The trainer with a torch that sees one GPU."""


def test_more_ranks_than_gpus_are_refused_before_start(tmp_path):
    words = [sys.executable, "-c", SEES, "--nproc-per-node", "2", "--output-dir", tmp_path / "run"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr.count("\n")) == (78, 1)  # one line, not one per rank
    assert_error(done.stderr, "too-few-gpus", " 1 ")


class TestRunInFork:
    def test_run_in_fork_returns_result_and_leaves_no_thread(self):
        script = (
            "import os; from trainer.launch.spawn import _run_in_fork; print(_run_in_fork(lambda _: os.getpid(), None))"
        )
        script += "; print(os.getpid(), len(os.listdir('/proc/self/task')))"
        done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
        another, this, threads = map(int, done.stdout.split())
        assert (another != this, threads) == (True, 1)

    def test_killed_child_of_run_in_fork_raises_error(self):
        with refused("broken-gpu", "-9"):
            _run_in_fork(lambda _: os.kill(os.getpid(), signal.SIGKILL), Settings())

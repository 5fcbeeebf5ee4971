"""``--nproc-per-node`` tested from outside: if it cannot fork, and on signals."""

import os
import signal
import time

import pytest

from support import TRAINER, digest, started, train

FLAGS = ["--arch", "mlp", "--epochs", "2", "--no-figures"]
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
"""A sitecustomize that starts a thread, so that ranks are not forked."""
SLOW = """
import os, time
from trainer.data.base import InMemoryDataset
from trainer.data.sets.digits import digits

class Slow(InMemoryDataset):
    def fetch(self, ids, draws):
        if os.environ.get("SLOW"):
            print("fetching", flush=True)
            time.sleep(600)
        return super().fetch(ids, draws)

def data(config):
    train, held = digits(config)
    return train, Slow(held.images, held.labels, held.classes, held.mean_std)
"""


def with_module(folder, name, text):
    """Return a PYTHONPATH with a module of this text."""
    (folder / f"{name}.py").write_text(text)
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


def test_spawned_ranks_match_forked_ranks_bitwise(tmp_path):
    forked, spawned = tmp_path / "forked", tmp_path / "spawned"
    train("spawn", 2, forked, *FLAGS)
    train("spawn", 2, spawned, *FLAGS, PYTHONPATH=with_module(tmp_path, "sitecustomize", THREAD))
    assert digest(forked / "checkpoints" / "latest") == digest(spawned / "checkpoints" / "latest")


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """Return a run on a data set whose validation part can be slow, and a PYTHONPATH with its module."""
    folder = tmp_path_factory.mktemp("slow")
    path = with_module(folder, "slow", SLOW)
    train("single", 1, folder / "run", *FLAGS, "--dataset", "slow:data", PYTHONPATH=path)
    return folder / "run", path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_evaluation_immediately(slow, tmp_path, number):
    run, path = slow
    words = [*TRAINER, "evaluate", str(run), "--nproc-per-node", "2"]
    with started(words, tmp_path / "log", PYTHONPATH=path, SLOW="1") as launch:
        launch.until(lambda: launch.output.count("fetching") == 2, "both ranks")
        began = time.monotonic()
        os.kill(launch.process.pid, number)
        assert launch.wait() == 128 + signal.SIGTERM  # the launcher passes it to the ranks
    assert time.monotonic() - began < 300

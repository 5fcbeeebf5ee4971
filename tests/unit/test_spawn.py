"""How ``--nproc-per-node`` starts its ranks: by a fork where that is safe."""

import multiprocessing
import signal
import subprocess
import sys
import time

import pytest

from slipway.stop import SIGNALS
from trainer.errors import TrainerError
from trainer.spawn import _start

ASK = "from trainer.spawn import _import_for_ranks; print(_import_for_ranks().get_start_method())"
THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start();"
OPERATION = "import torch; torch.set_num_threads(2); torch.ones(1 << 20).sum();"


@pytest.mark.parametrize(("before", "method"), [("", "fork"), (THREAD, "spawn"), (OPERATION, "spawn")])
def test_they_are_forked_only_from_a_process_without_other_threads(before, method):
    found = subprocess.run(
        [sys.executable, "-c", before + ASK], check=False, capture_output=True, text=True, timeout=120
    )
    assert (found.stdout, found.stderr) == (f"{method}\n", "")


def test_if_one_cannot_be_started_the_others_end(monkeypatch):
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=time.sleep, args=(60,)) for _ in range(3)]

    def fail():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(ranks[2], "start", fail)
    with pytest.raises(TrainerError, match="cannot start rank 2: Resource temporarily unavailable: too many processes"):
        _start(ranks)
    assert [rank.exitcode for rank in ranks[:2]] == [-signal.SIGKILL] * 2
    assert not {*SIGNALS} & signal.pthread_sigmask(signal.SIG_BLOCK, [])

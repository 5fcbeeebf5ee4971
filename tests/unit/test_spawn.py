"""How ``--nproc-per-node`` starts its ranks: by a fork where that is safe."""

import subprocess
import sys

import pytest

ASK = "from trainer.spawn import _import_for_ranks; print(_import_for_ranks().get_start_method())"
THREAD = "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start();"
OPERATION = "import torch; torch.set_num_threads(2); torch.ones(1 << 20).sum();"


@pytest.mark.parametrize(("before", "method"), [("", "fork"), (THREAD, "spawn"), (OPERATION, "spawn")])
def test_they_are_forked_only_from_a_process_without_other_threads(before, method):
    found = subprocess.run(
        [sys.executable, "-c", before + ASK], check=False, capture_output=True, text=True, timeout=120
    )
    assert (found.stdout, found.stderr) == (f"{method}\n", "")

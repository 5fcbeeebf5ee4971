"""``killed.py trainer|SCRIPT.py ARGUMENT...``: run it, and end it by SIGKILL after optimiser step KILL_AFTER (0: not).

The kill waits for the first checkpoint in RUN_DIR, which is written in the background. With DETERMINISTIC=1 torch takes
deterministic algorithms; an operator that has none warns: whether the result is the same, the test sees for itself.
"""

import os
import runpy
import signal
import sys
import time
from itertools import count
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

last = int(os.environ["KILL_AFTER"])
steps = count(1)
latest = Path(os.environ["RUN_DIR"], "checkpoints", "latest")


def kill(*_) -> None:
    """End this process, in the step after ``last``."""
    if next(steps) == last + 1:
        while not latest.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)


if os.environ["DETERMINISTIC"] == "1":
    torch.use_deterministic_algorithms(True, warn_only=True)
if last:
    register_optimizer_step_post_hook(kill)
name = sys.argv.pop(1)
if name == "trainer":
    runpy.run_module("trainer", run_name="__main__", alter_sys=True)
else:
    runpy.run_path(name, run_name="__main__")

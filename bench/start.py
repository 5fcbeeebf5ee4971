"""``python bench/start.py [--rounds N]``: measure the start of two ranks up to their first optimizer step.

It compares ``trainer --nproc-per-node 2``, the trainer under torchrun, and torchrun with a script of ten lines that
joins the ranks and takes one step with DDP.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from functools import partial
from pathlib import Path

from comparison import Comparison, compare, run, show

SCRIPT = """
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model(torch.randn(32, 64)).sum().backward()
optimizer.step()
distributed.barrier()
distributed.destroy_process_group()
"""
CONFIG = Path(__file__).parents[1] / "configs" / "digits.toml"
AIMS = {"trainer under torchrun": 1 / 1.1, "trainer --nproc-per-node 2": 2}


def comparisons(rounds: int = 5) -> list[Comparison]:
    """Compare the starts of the trainer and of torchrun."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        train = [str(CONFIG), "--arch", "mlp", "--dry-run", "--no-figures", "--device", "cpu"]
        commands = {
            "torchrun": [*torchrun, str(script)],
            "trainer under torchrun": [*torchrun, "-m", "trainer", *train, "--backend", "ddp"],
            "trainer --nproc-per-node 2": [sys.executable, "-m", "trainer", *train, "--nproc-per-node", "2"],
        }
        environment = {"OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": os.devnull}
        # About one in ten runs of the bare script aborts at exit, because the interpreter ends before DDP's threads.
        tries = {"torchrun": 3}
        turns = {
            name: partial(run, command, tries=tries.get(name, 1), **environment) for name, command in commands.items()
        }
        return [compare("start of two ranks", turns, rounds=rounds, aims=AIMS)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    show(comparisons(parser.parse_args().rounds))

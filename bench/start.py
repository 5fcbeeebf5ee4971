"""``python bench/start.py [--rounds N]``: what it costs to start two ranks, up to their first optimiser step.

Measured is CPU time, of all processes: of ``trainer --nproc-per-node 2``, of the trainer under torchrun, and of
torchrun with a script of ten lines that joins the ranks and takes one step of DDP (``bare``). They run in turns; a
second ``bare`` in each round shows how far two runs of the same thing are apart.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

BARE = """
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


def seconds(words: list[str]) -> float:
    """Return the CPU time of a command, and of all that it has started."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(words, stdout=output, stderr=output)
        _, status, used = os.wait4(child.pid, 0)
        if code := os.waitstatus_to_exitcode(status):
            output.seek(0)
            sys.exit(f"exit code {code}: {words}\n{output.read().decode()}")
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    os.environ |= {"OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": os.devnull}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "bare.py")
        script.write_text(BARE)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        train = [str(CONFIG), "--arch", "mlp", "--dry-run", "--no-figures"]
        commands = {
            "bare": [*torchrun, str(script)],
            "torchrun": [*torchrun, "-m", "trainer", *train, "--backend", "ddp"],
            "--nproc-per-node": [sys.executable, "-m", "trainer", *train, "--nproc-per-node", "2"],
            "bare again": [*torchrun, str(script)],
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(arguments.rounds):
            for name, words in commands.items():
                found[name].append(seconds(words))
            print(f"round {number + 1} of {arguments.rounds}", file=sys.stderr)
    bare = statistics.median(found["bare"])
    for name, values in found.items():
        middle = statistics.median(values)
        print(f"{name}: {middle:.2f} s ({min(values):.2f} to {max(values):.2f}), {middle / bare:.2f} of bare")


if __name__ == "__main__":
    main()

"""``python bench/order.py [--samples N] [--rounds N]``: time the first batch of an epoch of a very large data set.

It compares the two ways in which the trainer orders samples and draws the numbers that crop and flip each: computed on
demand, and from tables, which it uses for up to a million samples. It measures the CPU time until the first batch, the
memory that this needs, and the CPU time of each further batch.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from comparison import Comparison, Cost, Measure, compare_all, show

from slipway.base.environment import World
from slipway.rng import permutation
from trainer.config.settings import TrainConfig
from trainer.data import epoch
from trainer.data.base import Draws, Fetched, Ids
from trainer.data.loader import Loader
from trainer.data.training_batches import TrainingBatches

BATCH = 256
MORE = 2000
"""Number of measured batches after the first one."""


@dataclass
class Blank:
    """A data set of empty images, which cost nothing to fetch."""

    samples: int
    labels: torch.Tensor = field(init=False)
    draws: int = 3
    in_memory: bool = True

    def __post_init__(self) -> None:
        self.labels = torch.zeros(1, dtype=torch.int64).expand(self.samples)
        self._image = torch.zeros(BATCH, 1, 1, 1, dtype=torch.uint8)

    def __len__(self) -> int:
        return self.samples

    def fetch(self, ids: Ids, _draws: Draws | None) -> Fetched:
        """Return ``len(ids)`` images."""
        return Fetched(self._image[: len(ids)], [])


def peak() -> int:
    """Return the peak memory of this process in kB."""
    return int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text(encoding="utf-8"))[1])  # type: ignore[index]


def measure(samples: int, *, largest_table: int) -> list[float]:
    """Return the seconds and MB of the first batch, and the microseconds of each further one."""
    torch.set_num_threads(1)
    permutation.MAX_TABLE = epoch.MAX_TABLE = largest_table  # type: ignore[misc]
    blank: Any = Blank(samples)
    loader = Loader(blank, workers=0, device=torch.device("cpu"), warn=print)
    training = TrainingBatches(loader, TrainConfig(), World())
    training.batch_size = BATCH
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak memory: proc(5)
    before, began = peak(), time.process_time()
    batches = training.of_epoch(epoch=0, start=0, steps=None)
    next(batches)
    first, memory = time.process_time() - began, peak() - before
    began = time.process_time()
    for _ in range(MORE):
        next(batches)
    return [first, max(memory, 4) / 1e3, (time.process_time() - began) / MORE * 1e6]


def comparisons(rounds: int = 5, *, samples: int = 100_000_000) -> list[Comparison]:
    """Measure both ways, each in a separate process; tables are the older way, and so the peer."""
    measures = [
        Measure(f"first batch of {samples:,} samples", "CPU seconds"),
        Measure(f"memory that this takes, {samples:,} samples", "MB"),
        Measure("each further batch", "µs of CPU"),
    ]

    def turn(largest_table: int) -> list[Cost]:
        words = [sys.executable, __file__, "--samples", str(samples), "--largest-table", str(largest_table)]
        return [Cost(value) for value in json.loads(subprocess.check_output(words))]

    turns = {"tables": partial(turn, samples), "computed": partial(turn, 1)}
    return compare_all(measures, turns, rounds=rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--largest-table", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.largest_table:
        print(json.dumps(measure(arguments.samples, largest_table=arguments.largest_table)))
    else:
        show(comparisons(arguments.rounds, samples=arguments.samples))

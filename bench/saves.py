"""``python bench/saves.py [--saves N] [--steps N]``: how long steps take while a session saves in the background.

A model of 17 million weights trains under Adam, on one CPU thread: 205 MB a checkpoint. Three loops take turns: one
saves every STEPS steps, one never, and one, the peer, by torch.save within the step. Printed are the median, the 99th
percentile and the longest step of each, in ms. Each checkpoint is read back and compared with its SHA-256 sums; exit
code 1 if one is missing.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

WIDTH = 4132
"""Of the layer: 17 million weights, with Adam's two moments 205 MB."""
ROUNDS = 4


def build() -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """Return the model, its optimiser, and an input."""
    model = nn.Linear(WIDTH, WIDTH, bias=False)
    return model, torch.optim.Adam(model.parameters(), lr=1e-6), torch.randn(1, WIDTH)


def in_session(folder: str, *, steps: int, every: int | None) -> list[float]:
    """Train in a session that saves ``every`` so many steps, or never; return the ms of each step."""
    from slipway import Session  # noqa: PLC0415 -- from this checkout, see below

    model, optimizer, inputs = build()
    session = Session(
        model=model, optimizer=optimizer, folder=folder, checkpoint_steps=every, checkpoint_minutes=None, keep=steps
    )
    with session:
        return _timed(session.steps(steps), model, optimizer, inputs)


def by_torch_save(folder: str, *, steps: int, every: int) -> list[float]:
    """Train without a session and save by torch.save in the loop; return the ms of each step."""
    model, optimizer, inputs = build()

    def numbers() -> Iterator[int]:
        for step in range(steps):
            if step and step % every == 0:
                with Path(folder, f"{step}.pt").open("wb") as file:
                    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                    file.flush()
                    os.fsync(file.fileno())
            yield step

    return _timed(numbers(), model, optimizer, inputs)


def _timed(numbers: Iterable[int], model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> list[float]:
    times = []
    before = time.perf_counter()
    for _ in numbers:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(1e3 * (now - before))
        before = now
    return times[1:]  # the first makes the optimiser's state


def count_checkpoints(folder: str) -> tuple[int, int]:
    """Return how many checkpoints a session left in mid-run, each read back, and the bytes of one.

    Raises:
        DamagedError: if one is not what its SHA-256 sums say.
    """
    from slipway.checkpoint.folder import verify  # noqa: PLC0415

    saved = sorted(Path(folder, "checkpoints").glob("step_*"))[:-1]  # the last one is of the end
    for path in saved:
        verify(path)
    return len(saved), sum(file.stat().st_size for file in saved[0].iterdir())


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--saves", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="between two saves")
    args = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("slipway").setLevel(logging.ERROR)
    steps = args.saves // ROUNDS * args.steps + 1
    loops = {
        "not saving": partial(in_session, steps=steps, every=None),
        "saving": partial(in_session, steps=steps, every=args.steps),
        "torch.save": partial(by_torch_save, steps=steps, every=args.steps),
    }
    found: dict[str, list[float]] = {name: [] for name in loops}
    checked = size = 0
    order = list(loops)
    for number in range(ROUNDS):
        random.Random(number).shuffle(order)
        for name in order:
            with tempfile.TemporaryDirectory() as folder:
                found[name] += loops[name](folder)
                if name == "saving":
                    count, size = count_checkpoints(folder)
                    checked += count
    print(f"{checked} checkpoints of {size / 1e6:.0f} MB, each read back")
    for name, times in found.items():
        cuts = statistics.quantiles(times, n=100)
        print(
            f"{name:>12}  median {cuts[49]:7.1f} ms  99th percentile {cuts[98]:7.1f} ms  longest {max(times):7.1f} ms"
        )
    return int(checked != args.saves)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    sys.exit(main())

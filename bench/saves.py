"""``python bench/saves.py [--saves N] [--steps N]``: how long steps take while a session saves in the background.

A model of 17 million weights trains under Adam, on one CPU thread: 205 MB a checkpoint. Two loops take turns, step by
step in blocks: one saves every STEPS steps, the other never. Printed are the median, the 99th percentile and the
longest step of each, in ms. Each checkpoint is read back and compared with its SHA-256 sums; exit code 1 if
one differs.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

WIDTH = 4132
"""Of the layer: 17 million weights, with Adam's two moments 205 MB."""


def step_times(folder: str, *, steps: int, every: int | None, keep: int) -> list[float]:
    """Train for ``steps`` in a session that saves ``every`` so many, and return the ms of each step."""
    from slipway import Session  # noqa: PLC0415 -- from this checkout, see below

    model = nn.Linear(WIDTH, WIDTH, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    inputs = torch.randn(1, WIDTH)
    times = []
    session = Session(
        model=model, optimizer=optimizer, folder=folder, checkpoint_steps=every, checkpoint_minutes=None, keep=keep
    )
    with session:
        before = time.perf_counter()
        for _ in session.steps(steps):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            now = time.perf_counter()
            times.append(1e3 * (now - before))
            before = now
    return times[1:]


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--saves", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20, help="between two saves")
    args = parser.parse_args()
    from slipway.checkpoint.folder import verify  # noqa: PLC0415

    torch.set_num_threads(1)
    logging.getLogger("slipway").setLevel(logging.ERROR)
    found: dict[str, list[float]] = {"saving": [], "not saving": []}
    checked = size = 0
    rounds = 4
    for number in range(rounds):
        for name in sorted(found, reverse=bool(number % 2)):
            with tempfile.TemporaryDirectory() as folder:
                every = args.steps if name == "saving" else None
                saves = args.saves // rounds
                found[name] += step_times(folder, steps=saves * args.steps + 1, every=every, keep=saves + 1)
                for path in Path(folder, "checkpoints").glob("step_*"):
                    verify(path)
                    if name == "saving" and path.name != f"step_{saves * args.steps + 1:08d}":
                        checked += 1
                        size = sum(file.stat().st_size for file in path.iterdir())
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

"""``python bench/saves.py [--rounds N]``: how long training stands still while a session saves in the background.

A model of 17 million weights trains under Adam, on one CPU thread: 205 MB a checkpoint. It is saved every 20 steps by a
session, and by torch.save and fsync within the step. The stall of a checkpoint is the longest of the 20 steps that
follow, less the median step; that steps are slower while a core writes in the background does not count. Each
checkpoint of a session is read back and compared with its SHA-256 sums.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import torch
from comparison import Comparison, Cost, Measure, compare_all, show
from torch import Tensor, nn

WIDTH = 4132
"""Of the layer: 17 million weights, with Adam's two moments 205 MB."""
SAVES, INTERVAL = 5, 20
"""Checkpoints of a turn, and steps between them."""
STEPS = (SAVES + 1) * INTERVAL
AIM = 40


def build(device: str) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """Return the model, its optimiser, and an input."""
    model = nn.Linear(WIDTH, WIDTH, bias=False, device=device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-6), torch.randn(1, WIDTH, device=device)


def in_session(folder: str, device: str) -> list[float]:
    """Train in a session that saves; return the ms of each step."""
    from slipway import Session  # noqa: PLC0415 -- from this checkout, see below

    model, optimizer, inputs = build(device)
    session = Session(
        model=model,
        optimizer=optimizer,
        folder=folder,
        checkpoint_steps=INTERVAL,
        checkpoint_minutes=None,
        keep=SAVES + 1,
    )
    with session:
        times = _timed(session.steps(STEPS), model, optimizer, inputs)
    require_checkpoints(folder)
    return times


def by_torch_save(folder: str, device: str) -> list[float]:
    """Train without a session and save by torch.save in the loop; return the ms of each step."""
    model, optimizer, inputs = build(device)

    def numbers() -> Iterator[int]:
        for step in range(STEPS):
            if step and step % INTERVAL == 0:
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
        if inputs.is_cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        times.append(1e3 * (now - before))
        before = now
    return times[1:]  # the first makes the optimiser's state


def require_checkpoints(folder: str) -> None:
    """Read back what a session has saved.

    Raises:
        DamagedError: if a checkpoint is not what its SHA-256 sums say.
    """
    from slipway.checkpoint.folder import verify  # noqa: PLC0415

    saved = sorted(Path(folder, "checkpoints").glob("step_*"))
    for path in saved:
        verify(path)
    if len(saved) < SAVES:
        sys.exit(f"{len(saved)} checkpoints in place of {SAVES}")


def stalls(times: list[float]) -> list[float]:
    """Return the ms for which each checkpoint has held up the training."""
    usual = statistics.median(times)
    begins = range(INTERVAL - 1, SAVES * INTERVAL, INTERVAL)
    return [max(times[begin : begin + INTERVAL]) - usual for begin in begins]


def comparisons(rounds: int = 4, *, device: str = "cpu") -> list[Comparison]:
    """Measure."""
    torch.set_num_threads(1)
    logging.getLogger("slipway").setLevel(logging.ERROR)
    unit, aims = "ms by the clock", {"session": AIM}
    measures = [
        Measure("stall by a checkpoint of 205 MB", unit, aims),
        Measure(f"the longest of {SAVES} such stalls", unit, aims),
    ]

    def turn(loop: Callable[[str, str], list[float]]) -> list[Cost]:
        with tempfile.TemporaryDirectory() as folder:
            found = stalls(loop(folder, device))
        return [Cost(statistics.median(found)), Cost(max(found))]

    turns = {"torch.save and fsync": partial(turn, by_torch_save), "session": partial(turn, in_session)}
    return compare_all(measures, turns, rounds=rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    show(comparisons(parser.parse_args().rounds))

"""``python bench/saves.py [--rounds N]``: time how long training stalls while a session saves in the background.

A model of 17 million weights trains with Adam, on one CPU thread or on a GPU; a checkpoint has 205 MB. A session saves
it in the background; for comparison, torch.save and fsync save it within the step. The steps between two checkpoints
take three times as long as a write, because a save that waits for the previous one would measure the disk. A
checkpoint's stall is the longest step before the next checkpoint, minus the median step. On a GPU each step waits for
the device, so the stall includes work that a save leaves there for the next step. The call that saves is also timed
alone. Neither includes the slowdown of steps while a core writes in the background, nor a session's host buffers, which
it allocates once, after an early step. Each checkpoint of a session is read back and compared with its SHA-256 sums.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from comparison import Comparison, Cost, Measure, compare_all, show
from torch import Tensor, nn

WIDTH, TINY = 4132, 512
"""Width of the layer: 17 million weights, 205 MB with Adam's two moments; or 3 MB, to test the program."""
SAVES = 3
"""Checkpoints in a turn."""
LEAST, WRITES = 20, 3
"""Steps between two checkpoints: at least LEAST, and at least as long as WRITES writes."""
AIMS = {"cpu": {"session": 40.0}}
"""The factor by which a stall should be shorter than torch.save's, by device."""
LIMITS = {"cuda": {"session": 10.0}}
"""Maximum stall in ms, by device."""


class Times(NamedTuple):
    """Wall-clock times of one step in ms."""

    call: float
    """Time until the loop yields the step: it contains a save."""
    step: float
    """Time of the whole step, with the call."""


def build(device: str, width: int) -> tuple[nn.Module, torch.optim.Optimizer, Tensor]:
    """Return the model, its optimizer, and an input."""
    model = nn.Linear(width, width, bias=False, device=device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-6), torch.randn(1, width, device=device)


def interval_on(device: str, width: int) -> int:
    """Return the number of steps between two checkpoints, from measured times of a step and a write."""
    model, optimizer, inputs = build(device, width)
    step = statistics.median(times.step for times in _timed(range(LEAST), model, optimizer, inputs))
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        _save(Path(folder, "model.pt"), model, optimizer)
        write = 1e3 * (time.perf_counter() - began)
    return max(LEAST, math.ceil(WRITES * write / step))


def in_session(folder: str, device: str, width: int, interval: int) -> list[Times]:
    """Train in a session that saves; return the times of each step."""
    from slipway import Session  # noqa: PLC0415 -- from this checkout, see below

    model, optimizer, inputs = build(device, width)
    session = Session(
        model=model,
        optimizer=optimizer,
        folder=folder,
        checkpoint_steps=interval,
        checkpoint_minutes=None,
        keep=SAVES + 1,
    )
    with session:
        times = _timed(session.steps((SAVES + 1) * interval), model, optimizer, inputs)
    require_checkpoints(folder)
    return times


def by_torch_save(folder: str, device: str, width: int, interval: int) -> list[Times]:
    """Train without a session and save with torch.save in the loop; return the times of each step."""
    model, optimizer, inputs = build(device, width)

    def numbers() -> Iterator[int]:
        for step in range((SAVES + 1) * interval):
            if step and step % interval == 0:
                _save(Path(folder, f"{step}.pt"), model, optimizer)
            yield step

    return _timed(numbers(), model, optimizer, inputs)


def _save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with path.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def _timed(numbers: Iterable[int], model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor) -> list[Times]:
    times = []
    before = time.perf_counter()
    for _ in numbers:
        began = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if inputs.is_cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        times.append(Times(1e3 * (began - before), 1e3 * (now - before)))
        before = now
    return times[1:]  # the first step creates the optimizer's state


def require_checkpoints(folder: str) -> None:
    """Read and verify the checkpoints that a session has saved.

    Raises:
        DamagedError: if a checkpoint does not match its SHA-256 sums.
    """
    from slipway.checkpoint.format import verify  # noqa: PLC0415

    saved = sorted(Path(folder, "checkpoints").glob("step_*"))
    for path in saved:
        verify(path)
    if len(saved) < SAVES:
        sys.exit(f"{len(saved)} checkpoints instead of {SAVES}")


def stalls(times: list[Times], interval: int) -> list[Times]:
    """Return the stall of each checkpoint in ms: that of the longest call, and that of the longest step."""
    call, step = (statistics.median(values) for values in zip(*times, strict=True))
    windows = [times[begin : begin + interval] for begin in range(interval - 1, SAVES * interval, interval)]
    return [Times(max(each.call for each in own) - call, max(each.step for each in own) - step) for own in windows]


def comparisons(rounds: int = 4, *, device: str = "cpu", tiny: bool = False) -> list[Comparison]:
    """Compare the stalls of a session and of torch.save."""
    width = TINY if tiny else WIDTH
    torch.set_num_threads(1)
    logging.getLogger("slipway").setLevel(logging.ERROR)
    interval = interval_on(device, width)
    aims, limits = ({}, {}) if tiny else (AIMS.get(device, {}), LIMITS.get(device, {}))
    size = f"{12 * width**2 / 1e6:.0f} MB"
    titles = [
        f"stall by a checkpoint of {size}, every {interval} steps",
        f"the longest of {SAVES} such stalls",
        "the call that saves",
    ]
    measures = [Measure(title, "ms by the clock", aims, limits) for title in titles]

    def turn(loop: Callable[[str, str, int, int], list[Times]]) -> list[Cost]:
        with tempfile.TemporaryDirectory() as folder:
            found = stalls(loop(folder, device, width, interval), interval)
        steps, calls = [each.step for each in found], [each.call for each in found]
        return [Cost(statistics.median(steps)), Cost(max(steps)), Cost(statistics.median(calls))]

    turns = {"torch.save and fsync": partial(turn, by_torch_save), "session": partial(turn, in_session)}
    return compare_all(measures, turns, rounds=rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    show(comparisons(parser.parse_args().rounds))

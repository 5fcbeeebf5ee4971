"""``python bench/session.py [--steps N] [--rounds N]``: what a step costs more in a session than in a bare loop.

Each contender (bench/contenders.py) trains the same small model in a process of its own, on one CPU thread. They take
turns of some steps, in an order that is drawn anew each round, so that a slow moment of the machine falls on all of
them. Printed are the median µs per step over the bare loop of the same round, its quartiles, and the ratio to Fabric's.
A second bare loop among them shows the noise: above 5 µs the run is void, and the exit code is 1. Contenders that are
not installed are left out (ignite is in no environment of this project).
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from contenders import Contender, installed  # which imports slipway from this checkout

SETTLE = 20
"""Steps at the beginning of a turn that are not timed: caches are cold."""
START_LIMIT = 120
"""Seconds that a contender may take to begin."""


class Turns:
    """Counts the steps of a contender, which waits for its turn after so many of them."""

    def __init__(self, driver: Connection, steps: int) -> None:
        """Take turns of ``steps`` as ``driver`` says, and tell it the µs of a step."""
        self._driver = driver
        self._steps = steps
        self._done = -1
        self._begun = 0.0

    def __call__(self) -> None:
        """Begin a step."""
        self._done += 1
        if self._done == SETTLE:
            self._begun = time.perf_counter()
        elif self._done == SETTLE + self._steps:
            self._driver.send((time.perf_counter() - self._begun) / self._steps * 1e6)
        if self._done in {0, SETTLE + self._steps}:
            self._done = 0
            self._driver.recv()


def contend(train: Contender, driver: Connection, folder: str, steps: int) -> None:
    """Train in this process until it is ended; what the libraries say goes into a file."""
    sink = os.open(f"{folder}/output", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(sink, stream)
    torch.set_num_threads(1)
    train(Turns(driver, steps), folder)


@contextlib.contextmanager
def started(contenders: dict[str, Contender], steps: int) -> Iterator[dict[str, Connection]]:
    """Start them all; each waits for its turn. End them at last."""
    context = multiprocessing.get_context("spawn")
    with contextlib.ExitStack() as stack:
        drivers = {}
        for name, train in contenders.items():
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            ours, theirs = context.Pipe()
            process = context.Process(target=contend, args=(train, theirs, folder, steps), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.kill)
            stack.push(functools.partial(tell, folder))
            drivers[name] = ours
        yield drivers


def tell(folder: str, kind: object, error: BaseException | None, _traceback: object) -> None:
    """Show what a contender said, if something went wrong."""
    if isinstance(error, (TimeoutError, OSError, EOFError)) and kind:
        print(Path(folder, "output").read_text()[-2000:], file=sys.stderr)


def take_turn(driver: Connection) -> float:
    """Return the µs of a step.

    Raises:
        TimeoutError, EOFError, BrokenPipeError: if the contender hangs, or has ended.
    """
    driver.send(None)
    if not driver.poll(START_LIMIT):
        raise TimeoutError
    return float(driver.recv())


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="of a turn")
    parser.add_argument("--rounds", type=int, default=150)
    args = parser.parse_args()
    found: dict[str, list[float]] = {}
    with started(installed(), args.steps) as drivers:
        order = list(drivers)
        shuffle = random.Random(0).shuffle
        for number in range(args.rounds + 1):
            shuffle(order)
            for name in order:
                microseconds = take_turn(drivers[name])
                if number:  # the first round imports and warms up
                    found.setdefault(name, []).append(microseconds)
    print(f"bare: {statistics.median(found['bare']):.1f} µs a step; {args.rounds} turns of {args.steps} steps each")
    over = {
        name: [mine - theirs for mine, theirs in zip(found[name], found["bare"], strict=True)]
        for name in installed()
        if name != "bare"
    }
    peer = statistics.median(over["Fabric"]) if "Fabric" in over else None
    for name, values in over.items():
        low, high = statistics.quantiles(values, n=4)[::2]
        ratio = f"  {statistics.median(values) / peer:5.2f} of Fabric's" if peer else ""
        print(f"{name:>12}  {statistics.median(values):+7.1f} µs  ({low:+.1f} to {high:+.1f}){ratio}")
    noise = abs(statistics.median(over["bare, again"]))
    if noise > 5:  # noqa: PLR2004 -- µs, as the docstring says
        print(f"void: two bare loops differ by {noise:.1f} µs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

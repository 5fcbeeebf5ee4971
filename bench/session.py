"""``python bench/session.py [--steps N] [--rounds N]``: measure the overhead of a step in a session.

Each contender (bench/contenders.py) trains the same small model in a separate process, on one CPU thread. They take
turns of some steps, in a new random order each round, so that a slow moment of the machine affects all of them. It
prints the median µs per step above the bare loop of the same round, its quartiles, and the ratio to Fabric's. A second
bare loop measures the noise: above 5 µs the run is void, and the exit code is 1. Contenders that are not installed are
skipped (no environment of this project has ignite).
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

from contenders import Contender, installed  # it imports slipway from this checkout

SETTLE = 20
"""Untimed steps at the start of a turn, while caches are cold."""
START_LIMIT = 120
"""Seconds that a contender may take to start."""


class Turns:
    """Counts a contender's steps and makes it wait for its turn after a number of them."""

    def __init__(self, driver: Connection, steps: int) -> None:
        """Take turns of ``steps`` steps when ``driver`` requests one, and send it the µs per step."""
        self._driver = driver
        self._steps = steps
        self._done = -1
        self._begun = 0.0

    def __call__(self) -> None:
        """Count a step, called at its start."""
        self._done += 1
        if self._done == SETTLE:
            self._begun = time.perf_counter()
        elif self._done == SETTLE + self._steps:
            self._driver.send((time.perf_counter() - self._begun) / self._steps * 1e6)
        if self._done in {0, SETTLE + self._steps}:
            self._done = 0
            self._driver.recv()


def contend(train: Contender, driver: Connection, folder: str, steps: int) -> None:
    """Train in this process until it is killed; redirect the libraries' output to a file."""
    sink = os.open(f"{folder}/output", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(sink, stream)
    torch.set_num_threads(1)
    train(Turns(driver, steps), folder)


@contextlib.contextmanager
def started(contenders: dict[str, Contender], steps: int) -> Iterator[dict[str, Connection]]:
    """Start all contenders, each of which waits for its turn; kill them at exit."""
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
    """Print the end of a contender's output after an error."""
    if isinstance(error, (TimeoutError, OSError, EOFError)) and kind:
        print(Path(folder, "output").read_text()[-2000:], file=sys.stderr)


def take_turn(driver: Connection) -> float:
    """Let a contender take its turn and return the µs per step.

    Raises:
        TimeoutError, EOFError, BrokenPipeError: if the contender hangs, or has ended.
    """
    driver.send(None)
    if not driver.poll(START_LIMIT):
        raise TimeoutError
    return float(driver.recv())


def main() -> int:
    """Compare the contenders, print the results and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=200, help="steps of a turn")
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
    if noise > 5:  # noqa: PLR2004 -- µs, as in the docstring
        print(f"void: two bare loops differ by {noise:.1f} µs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

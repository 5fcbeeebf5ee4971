"""``python bench/split_auto.py [--arch NAME ...] [--cuts N] [--rounds N]``: compare ``--split auto`` to measured cuts.

Each torchvision model is profiled piece by piece and cut into two stages, as with ``--split auto``, on one CPU thread.
Then random cuts, the chosen cut and its neighbors are measured: a micro-batch passes forward and backward through the
two stages of each. The cuts take turns in a new order each round, so that other load on the machine affects all alike.
A cut's cost is that of its slowest stage, measured in two ways:

- clock: the larger of the two stages' median times, in seconds, including the effect of other load;
- share: the larger of the two stages' median shares of a pass, times the median of all passes. Every cut does the same
  work, so a pass shows the machine's speed at that moment, and only shares distinguish cuts.

For each model it prints the cuts by their share; Spearman's rank correlation of predictions and measurements; the
median error of the predictions; and the ratio of the chosen cut to the best measured one. The machine may be slower
during profiling than during measurement, so it also prints the error after it multiplies all predictions by one factor,
the median ratio of measured to predicted times. Exits with 1 if a model misses a bound, by shares.

mallopt makes the C library keep freed memory, as torch does on GPUs. Otherwise it returns large tensors to the system,
and the page faults of new ones take longer than many layers, and vary.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import random
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ARCHS = ("resnet50", "efficientnet_b0")
SHAPE = (8, 3, 96, 96)
"""Shape of a micro-batch."""
CPU = torch.device("cpu")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of mallopt(3)."""
CORRELATION, ERROR, RATIO = 0.95, 0.10, 1.10
"""Bounds: minimum rank correlation, maximum median error after the common factor, and maximum ratio."""


class Cut(NamedTuple):
    """A cut into two stages, and the seconds of the slowest stage."""

    name: str
    """The first submodule of the second stage."""
    predicted: float
    clock: float
    share: float


class OnePass:
    """A micro-batch and its processing outside the model (trainer.parallel.stages.pipeline.Passes)."""

    def __init__(self, shape: Sequence[int], classes: int) -> None:
        """Draw images of ``shape`` [n, c, h, w] and labels."""
        generator = torch.Generator().manual_seed(0)
        self._images = torch.randn(*shape, generator=generator)
        self._labels = torch.randint(classes, shape[:1], generator=generator)

    def prepare(self, _micro: int) -> Tensor:
        """Return the images [n, c, h, w]."""
        return self._images

    def forward(self, _micro: int) -> AbstractContextManager[None]:
        """Do nothing around a forward pass."""
        return nullcontext()

    def loss(self, _micro: int, logits: Tensor) -> Tensor:
        """Return the cross entropy of ``logits`` [n, classes]."""
        return F.cross_entropy(logits, self._labels)


def main() -> int:
    """Print a table for each model, and return 1 if one misses a bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--arch", nargs="+", default=ARCHS, help="torchvision models")
    parser.add_argument("--cuts", type=int, default=20, help="random cuts, besides the chosen one and its neighbors")
    parser.add_argument("--rounds", type=int, default=8, help="number of rounds; each measures every cut once")
    parser.add_argument("--shape", type=int, nargs=4, default=SHAPE, metavar=("N", "C", "H", "W"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    good = [compare(arch, shape=args.shape, count=args.cuts, rounds=args.rounds, seed=args.seed) for arch in args.arch]
    return int(not all(good))


def compare(arch: str, *, shape: Sequence[int], count: int, rounds: int, seed: int) -> bool:
    """Measure a model and print the results; return whether it meets all bounds."""
    from trainer.model.torchvision_on_cpu import import_torchvision  # noqa: PLC0415
    from trainer.parallel.stages.balance import balance  # noqa: PLC0415 -- from this checkout, see below
    from trainer.parallel.stages.profile import profile  # noqa: PLC0415

    torch.manual_seed(seed)
    model: nn.Module = import_torchvision().models.get_model(arch)
    before = time.perf_counter()
    pieces = profile(model, torch.zeros(*shape), device=CPU, forward=nullcontext)
    took = time.perf_counter() - before
    best = balance(pieces, 2, fits=lambda *_: True)[1]
    chosen = pieces[best].name
    begins = _draw(len(pieces), best, count=count, seed=seed)
    sums = [0.0, *itertools.accumulate(piece.seconds for piece in pieces)]
    measured = measure(model, [pieces[begin].name for begin in begins], shape=shape, rounds=rounds, seed=seed)
    cuts = [
        Cut(pieces[begin].name, max(sums[begin], sums[-1] - sums[begin]), *found)
        for begin, found in zip(begins, measured, strict=True)
    ]

    print(f"{arch}, images {list(shape)}: {len(pieces)} pieces profiled in {took:.1f} s; {rounds} rounds")
    print("ms of the slowest stage      predicted     clock     share")
    for cut in sorted(cuts, key=lambda cut: cut.share):
        row = "".join(f"{1e3 * seconds:10.1f}" for seconds in cut[1:])
        print(f"{cut.name:28}{row}{'   <- chosen' if cut.name == chosen else ''}")
    predicted = [cut.predicted for cut in cuts]
    at = [cut.name for cut in cuts].index(chosen)
    _judge("clock", predicted, [cut.clock for cut in cuts], at)
    kept = _judge("share", predicted, [cut.share for cut in cuts], at)
    print(flush=True)
    return kept


def _judge(what: str, predicted: Sequence[float], measured: Sequence[float], chosen: int) -> bool:
    """Print how well ``predicted`` agrees with ``measured``; return whether all bounds are met."""
    factor = statistics.median(it / before for before, it in zip(predicted, measured, strict=True))
    raw, error = (
        statistics.median(abs(by * before / it - 1) for before, it in zip(predicted, measured, strict=True))
        for by in (1, factor)
    )
    correlation = statistics.correlation(_ranks(predicted), _ranks(measured))
    ratio = measured[chosen] / min(measured)
    print(
        f"{what}: rank correlation {correlation:.3f}; median error {raw:.1%}, and {error:.1%} after the factor "
        f"{factor:.3f}; chosen by best {ratio:.3f}"
    )
    return correlation >= CORRELATION and error <= ERROR and ratio <= RATIO


def _draw(pieces: int, best: int, *, count: int, seed: int) -> list[int]:
    """Return ``count`` random places among ``pieces``, ``best``, and its neighbors."""
    places = range(1, pieces)
    drawn = set(random.Random(seed).sample(places, min(count, len(places))))
    return sorted(drawn | {best - 1, best, best + 1} & set(places))


def measure(
    model: nn.Module, names: Sequence[str], *, shape: Sequence[int], rounds: int, seed: int
) -> list[tuple[float, float]]:
    """Return the seconds of the slowest of two stages, by clock and by share, for the cut before each of ``names``."""
    from trainer.parallel.stages.pipeline import Pipeline  # noqa: PLC0415
    from trainer.parallel.stages.timeline import Timeline  # noqa: PLC0415

    devices = [CPU, CPU]
    pipelines = [Pipeline(model, [name], devices) for name in names]
    passes = OnePass(shape, classes=1000)
    found: list[list[tuple[float, float]]] = [[] for _ in names]
    order = list(range(len(names)))
    for number in range(1 + rounds):
        random.Random(seed + number).shuffle(order)
        for cut in order:
            timeline = Timeline(devices)
            pipelines[cut].train(iter([0]), 1, passes, measure=timeline.measure)  # gradients add up, as in a step
            seconds = [0.0, 0.0]
            for unit, start, end in timeline.passes():
                seconds[unit.stage] += end - start
            if number:  # the first round fills the caches
                found[cut].append((seconds[0], seconds[1]))
    whole = statistics.median(sum(stages) for rows in found for stages in rows)
    return [
        (
            max(map(statistics.median, zip(*rows, strict=True))),
            whole * max(statistics.median(stages[place] / sum(stages) for stages in rows) for place in range(2)),
        )
        for rows in found
    ]


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal values get their mean rank."""
    order = sorted(values)
    return [order.index(value) + (order.count(value) - 1) / 2 for value in values]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    sys.exit(main())

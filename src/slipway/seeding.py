"""Random numbers as a function of the position: a session seeds the global generators anew before each batch.

So no state of a generator is ever saved, and a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from enum import IntEnum

import torch
from torch import Tensor

MASK = (1 << 64) - 1


class Purpose(IntEnum):
    """What a seed is for, so that seeds of equal epoch and batch differ."""

    EPOCH = 0
    """Code of an epoch outside of ``batches``."""
    ORDER = 1
    """The order of the samples; the same on all ranks."""
    FETCH = 2
    """The samples of a batch, in a worker process or not."""
    BODY = 3
    """The body of the loop: dropout, noise."""
    VALIDATION = 4
    """What comes after the batches of an epoch."""


def derive(*key: int) -> int:
    """Return 63 bits that depend on each number of ``key``, by the finaliser of SplitMix64.

    Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    state = 0
    for number in key:
        state = (state + number + 0x9E3779B97F4A7C15) & MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
        state ^= state >> 31
    return state >> 1


def device_generators(tensors: Iterable[Tensor]) -> list[torch.Generator]:
    """Return the default generators of the GPUs on which ``tensors`` are."""
    indices = {tensor.device.index for tensor in tensors if tensor.is_cuda}
    return [torch.cuda.default_generators[index] for index in sorted(indices)]


def seed_generators(seed: int, devices: Iterable[torch.Generator] = ()) -> None:
    """Seed the global generators of Python, of numpy where it is loaded, and of torch: for CPUs, and ``devices``."""
    random.seed(seed)  # half of what all this takes
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    for generator in devices:
        generator.manual_seed(seed)

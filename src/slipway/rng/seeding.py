"""The global generators of random numbers: seeded by the place in training, and in mid-epoch captured and restored."""

from __future__ import annotations

import base64
import random
import sys
import zlib
from array import array
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

MASK = (1 << 64) - 1
INCREMENT, FIRST, SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""Words of SplitMix64: its step, and the multipliers of its finaliser.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""


class Purpose(IntEnum):
    """What a seed is for, so that seeds of equal epoch and batch differ."""

    EPOCH = 0
    """Code of an epoch before ``batches``."""
    ORDER = 1
    """The order of the samples; the same on all ranks."""
    FETCH = 2
    """The samples of a batch, in a worker process."""
    BODY = 3
    """The body of the loop: dropout, noise; and samples that the rank itself fetches."""
    VALIDATION = 4
    """What comes after the batches of an epoch."""
    WORKER = 5
    """A worker process where it starts: ``get_worker_info().seed``."""
    AFTER = 6
    """What comes after the epochs, and after the session: the models of the next one, say; the same on all ranks."""


def derive(*key: int) -> int:
    """Return 63 bits that depend on each number of ``key``, by the finaliser of SplitMix64."""
    state = 0
    for number in key:
        state = (state + number + INCREMENT) & MASK
        state = ((state ^ (state >> 30)) * FIRST) & MASK
        state = ((state ^ (state >> 27)) * SECOND) & MASK
        state ^= state >> 31
    return state >> 1


def seed_generators(seed: int, devices: Iterable[torch.Generator] = ()) -> None:
    """Seed the global generators of Python, of numpy where it is loaded, and of torch: for CPUs, and ``devices``."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    for generator in devices:
        generator.manual_seed(seed)


def reseed(generator: Any, seed: int) -> None:
    """Seed a generator of torch, numpy or Python."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif hasattr(generator, "bit_generator"):  # numpy's Generator
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:  # numpy's RandomState
        generator.seed(seed & 0xFFFFFFFF)


def state_digest(generator: Any) -> int:
    """Return 32 bits that depend on the state of a generator of torch, numpy or Python."""
    if isinstance(generator, torch.Generator):
        state: Any = generator.get_state().numpy().tobytes()
    elif isinstance(generator, random.Random):
        state = generator.getstate()
    elif hasattr(generator, "bit_generator"):
        state = generator.bit_generator.state
    else:
        state = [part.tobytes() if hasattr(part, "tobytes") else part for part in generator.get_state()]
    return zlib.crc32(repr(state).encode())


class Generators:
    """The global generators of this process: Python's, numpy's where it is loaded, torch's, and those of its GPUs."""

    def __init__(self, seed: int, rank: int, tensors: Iterable[Tensor]) -> None:
        """Seed by ``seed`` and ``rank``; the GPUs are those on which ``tensors`` are."""
        self._key = seed, rank
        indices = {tensor.device.index for tensor in tensors if tensor.is_cuda}
        self._devices = [torch.cuda.default_generators[index] for index in sorted(indices)]

    def seed(self, purpose: Purpose, *place: int) -> None:
        """Seed all of them, for a purpose at a place: differently on each rank, except after the training."""
        seed, rank = self._key
        seed_generators(derive(seed, purpose, *place, 0 if purpose is Purpose.AFTER else rank), self._devices)

    def capture(self) -> dict[str, Any]:
        """Return their states, as JSON of some kilobytes."""
        version, words, gauss = random.getstate()
        found: dict[str, Any] = {"python": [version, _pack(array("I", words).tobytes()), gauss]}
        if numpy := sys.modules.get("numpy"):
            name, key, *rest = numpy.random.get_state()
            found["numpy"] = [name, _pack(key.tobytes()), *rest]
        found["torch"] = [
            _pack(generator.get_state().numpy().tobytes()) for generator in (torch.default_generator, *self._devices)
        ]
        return found

    def restore(self, found: dict[str, Any]) -> None:
        """Bring them to what ``capture`` returned; numpy and GPUs that were not in use then stay as they are."""
        version, words, gauss = found["python"]
        random.setstate((version, tuple(array("I", _unpack(words))), gauss))
        if "numpy" in found:
            import numpy as np  # noqa: PLC0415 -- only if the script has loaded it before

            name, key, *rest = found["numpy"]
            np.random.set_state((name, np.frombuffer(_unpack(key), dtype=np.uint32), *rest))  # noqa: NPY002 -- the global one
        for generator, state in zip((torch.default_generator, *self._devices), found["torch"], strict=False):
            generator.set_state(torch.frombuffer(bytearray(_unpack(state)), dtype=torch.uint8))


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))

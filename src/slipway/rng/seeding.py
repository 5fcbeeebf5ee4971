"""Seed the global random number generators by the position in training; capture and restore them within an epoch."""

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
"""Constants of SplitMix64: the increment and the multipliers of the finalizer.

Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""


class Purpose(IntEnum):
    """Purpose of a seed, so that seeds for the same epoch and batch differ."""

    EPOCH = 0
    """Code of an epoch before ``batches``."""
    ORDER = 1
    """Order of the samples; the same on all ranks."""
    FETCH = 2
    """Samples of a batch that a worker process fetches."""
    BODY = 3
    """Loop body (dropout, noise), and samples that the rank itself fetches."""
    VALIDATION = 4
    """Code after the batches of an epoch."""
    WORKER = 5
    """Start of a worker process: ``get_worker_info().seed``."""
    AFTER = 6
    """Code after the epochs and after the session, such as the next session's models; the same on all ranks."""
    AUGMENTATION = 7
    """Augmentation of a sample by the trainer; the same on all ranks."""


def derive(*key: int) -> int:
    """Return a 63-bit hash of the numbers in ``key``, computed with the finalizer of SplitMix64."""
    state = 0
    for number in key:
        state = (state + number + INCREMENT) & MASK
        state = ((state ^ (state >> 30)) * FIRST) & MASK
        state = ((state ^ (state >> 27)) * SECOND) & MASK
        state ^= state >> 31
    return state >> 1


def seed_generators(seed: int, devices: Iterable[torch.Generator] = ()) -> None:
    """Seed the global generators of Python, of NumPy if it is imported, and of torch for the CPU and ``devices``."""
    random.seed(seed)
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed takes a hundred times as long
    for generator in devices:
        generator.manual_seed(seed)


def reseed(generator: Any, seed: int) -> None:
    """Seed a generator of torch, NumPy or Python."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, random.Random):
        generator.seed(seed)
    elif hasattr(generator, "bit_generator"):  # NumPy's Generator
        generator.bit_generator.state = type(generator.bit_generator)(seed).state
    else:  # NumPy's RandomState
        generator.seed(seed & 0xFFFFFFFF)


def state_digest(generator: Any) -> int:
    """Return a 32-bit checksum of the state of a generator of torch, NumPy or Python."""
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
    """Global generators of this process: Python's, NumPy's if it is imported, torch's CPU generator and its GPUs'."""

    def __init__(self, seed: int, rank: int, tensors: Iterable[Tensor]) -> None:
        """Use ``seed`` and ``rank`` in all seeds, and the generators of the GPUs that hold ``tensors``."""
        self._key = seed, rank
        indices = {tensor.device.index for tensor in tensors if tensor.is_cuda}
        self._devices = [torch.cuda.default_generators[index] for index in sorted(indices)]

    def seed(self, purpose: Purpose, *place: int) -> None:
        """Seed all generators for a purpose at a position; seeds differ between ranks except for Purpose.AFTER."""
        seed, rank = self._key
        seed_generators(derive(seed, purpose, *place, 0 if purpose is Purpose.AFTER else rank), self._devices)

    def capture(self) -> dict[str, Any]:
        """Return all states as a JSON value of a few kilobytes."""
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
        """Restore the states from ``capture``; NumPy and GPUs that it did not capture remain unchanged."""
        version, words, gauss = found["python"]
        random.setstate((version, tuple(array("I", _unpack(words))), gauss))
        if "numpy" in found:
            import numpy as np  # noqa: PLC0415 -- only if the script had imported it

            name, key, *rest = found["numpy"]
            np.random.set_state((name, np.frombuffer(_unpack(key), dtype=np.uint32), *rest))  # noqa: NPY002 -- the global one
        for generator, state in zip((torch.default_generator, *self._devices), found["torch"], strict=False):
            generator.set_state(torch.frombuffer(bytearray(_unpack(state)), dtype=torch.uint8))


def _pack(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


def _unpack(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))

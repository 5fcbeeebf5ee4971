"""Random numbers of a run, all derived from its seed and the place where they are used.

No generator state is saved: a resumed run derives the same numbers again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from slipway.rng.seeding import derive

CPU = torch.device("cpu")
DROPOUT, SYNTHETIC, SPLIT, AERIAL = range(2, 6)
"""Purposes of streams, so that streams with the same seed, epoch and rank differ."""


def stream(purpose: int, *key: int) -> np.random.Generator:
    """Return the generator for ``purpose`` at ``key`` (seed first, then epoch, rank, ...)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([purpose, *key])))


class Seeder(Protocol):
    """Seeds torch's generators during a step, for dropout and similar layers."""

    version: int
    """Version of the random numbers, which a checkpoint records."""

    def begin(self, step: int, micro: int) -> None:
        """Prepare for a forward pass of micro-batch ``micro`` of optimizer step ``step``."""
        ...

    def replay(self) -> AbstractContextManager[None]:
        """Return a context in which a part of the current forward pass can be recomputed later."""
        ...

    def close(self) -> None:
        """Stop seeding."""
        ...


def seeder_of(version: int, model: nn.Module, device: torch.device, *, seed: int, rank: int) -> Seeder:
    """Return the seeder of ``version`` for the layers of ``model``, whose first layers are on ``device``."""
    if version == StepSeeder.version:
        return StepSeeder(device, seed=seed, rank=rank)
    return ModuleSeeder(model, seed=seed, rank=rank)


class ModuleSeeder:
    """Seeder that runs before each module, from (seed, rank, step, micro-batch, module name): version 2.

    So a model draws the same numbers whole or split, on one or several devices, with any schedule.
    """

    version = 2

    def __init__(self, model: nn.Module, *, seed: int, rank: int) -> None:
        """Register hooks on the modules of ``model``, except torch.nn layers that draw no random numbers."""
        self._base = int(stream(DROPOUT, seed, rank).integers(2**62))
        self._step = self._micro = 0
        self._hooks = [
            module.register_forward_pre_hook(partial(self._seed, _key(name)))
            for name, module in model.named_modules()
            if not uses_no_randomness(module)
        ]

    def begin(self, step: int, micro: int) -> None:
        """Prepare for a forward pass of micro-batch ``micro`` of optimizer step ``step``."""
        self._step, self._micro = step, micro

    def replay(self) -> AbstractContextManager[None]:
        """Return a context that seeds as in the current forward pass, and then restores the step and micro-batch."""
        return self._at(self._step, self._micro)

    @contextmanager
    def _at(self, *place: int) -> Iterator[None]:
        before = self._step, self._micro
        self._step, self._micro = place
        try:
            yield
        finally:
            self._step, self._micro = before

    def close(self) -> None:
        """Remove the hooks from the modules."""
        for hook in self._hooks:
            hook.remove()

    def _seed(self, key: int, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            device = next((value.device for value in inputs if isinstance(value, Tensor)), CPU)
            generator_of(device).manual_seed(derive(self._base, self._step, self._micro, key))


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def uses_no_randomness(module: nn.Module) -> bool:
    """Return whether ``module`` is a torch.nn layer that draws no random numbers."""
    cls = type(module)
    return cls.__module__.startswith("torch.nn.modules.") and not (
        cls.__module__.endswith((".dropout", ".transformer"))
        or cls.__name__ in {"RReLU", "MultiheadAttention", "FractionalMaxPool2d", "FractionalMaxPool3d"}
    )


def generator_of(device: torch.device) -> torch.Generator:
    """Return the generator that layers on ``device`` draw from."""
    return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator


class StepSeeder:
    """Seeder that runs once before each optimizer step, for one device, from (seed, rank, step): version 1."""

    version = 1

    def __init__(self, device: torch.device, *, seed: int, rank: int) -> None:
        """Prepare to seed the generator of ``device``, from which its layers draw."""
        self._base = int(stream(DROPOUT, seed, rank).integers(2**62))
        self._generator = generator_of(device)

    def begin(self, step: int, micro: int) -> None:
        """Seed for optimizer step ``step`` at its first micro-batch; later ones continue the sequence."""
        if micro == 0:
            self._generator.manual_seed(self._base + step)

    def replay(self) -> AbstractContextManager[None]:
        """Do nothing: torch restores the generator's state itself."""
        return nullcontext()

    def close(self) -> None:
        """Do nothing: this seeder registers no hooks."""

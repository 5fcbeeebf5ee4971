"""Every random number of a run, derived from its one seed and from where it is used.

No generator state is ever saved: a resumed run derives the same numbers again.
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
ORDER, AUGMENTATION, DROPOUT, SYNTHETIC, SPLIT, AERIAL = range(6)
"""What a stream is for, so that streams of equal seed, epoch and rank differ."""


def stream(purpose: int, *key: int) -> np.random.Generator:
    """Return the generator for ``purpose`` at ``key`` (seed first, then epoch, rank, ...)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([purpose, *key])))


class Seeder(Protocol):
    """Seeds torch's generators while a step goes on, for dropout and the like."""

    version: int
    """A checkpoint records it."""

    def begin(self, step: int, micro: int) -> None:
        """Make ready for a forward pass of micro-batch ``micro`` of optimiser step ``step``."""
        ...

    def replay(self) -> AbstractContextManager[None]:
        """Return a context in which a part of the forward pass under way can be computed again, later."""
        ...

    def close(self) -> None:
        """Seed nothing any more."""
        ...


def seeder_of(version: int, model: nn.Module, device: torch.device, *, seed: int, rank: int) -> Seeder:
    """Return the seeder of a ``version``, for the layers of ``model``, of which the first are on ``device``."""
    if version == StepSeeder.version:
        return StepSeeder(device, seed=seed, rank=rank)
    return ModuleSeeder(model, seed=seed, rank=rank)


class ModuleSeeder:
    """Seeds them as a module begins, from (seed, rank, step, micro-batch, name of the module): version 2.

    So a model draws the same numbers whole and split, on one device and on several, in any schedule.
    """

    version = 2

    def __init__(self, model: nn.Module, *, seed: int, rank: int) -> None:
        """Seed for the modules of ``model``, but for layers of torch.nn that draw nothing."""
        self._base = int(stream(DROPOUT, seed, rank).integers(2**62))
        self._step = self._micro = 0
        self._hooks = [
            module.register_forward_pre_hook(partial(self._seed, _key(name)))
            for name, module in model.named_modules()
            if not draws_nothing(module)
        ]

    def begin(self, step: int, micro: int) -> None:
        """Make ready for a forward pass of micro-batch ``micro`` of optimiser step ``step``."""
        self._step, self._micro = step, micro

    def replay(self) -> AbstractContextManager[None]:
        """Seed as in the forward pass under way; then as before."""
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
        """Leave the modules alone."""
        for hook in self._hooks:
            hook.remove()

    def _seed(self, key: int, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if module.training:
            device = next((value.device for value in inputs if isinstance(value, Tensor)), CPU)
            generator_of(device).manual_seed(derive(self._base, self._step, self._micro, key))


def _key(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def draws_nothing(module: nn.Module) -> bool:
    """Return whether ``module`` is a layer of torch.nn that needs no random numbers."""
    cls = type(module)
    return cls.__module__.startswith("torch.nn.modules.") and not (
        cls.__module__.endswith((".dropout", ".transformer"))
        or cls.__name__ in {"RReLU", "MultiheadAttention", "FractionalMaxPool2d", "FractionalMaxPool3d"}
    )


def generator_of(device: torch.device) -> torch.Generator:
    """Return the generator that layers on ``device`` draw from."""
    return torch.cuda.default_generators[device.index or 0] if device.type == "cuda" else torch.default_generator


class StepSeeder:
    """Seeds the generator of one device before each optimiser step, from (seed, rank, step): version 1."""

    version = 1

    def __init__(self, device: torch.device, *, seed: int, rank: int) -> None:
        """Seed the generator of ``device``, which the layers on it draw from."""
        self._base = int(stream(DROPOUT, seed, rank).integers(2**62))
        self._generator = generator_of(device)

    def begin(self, step: int, micro: int) -> None:
        """Make ready for optimiser step ``step``; its later micro-batches draw on."""
        if micro == 0:
            self._generator.manual_seed(self._base + step)

    def replay(self) -> AbstractContextManager[None]:
        """Leave it to torch, which keeps the state of the generator."""
        return nullcontext()

    def close(self) -> None:
        """There is nothing to undo."""

"""Seeding of torch's generators during a step, for dropout and similar layers.

No generator state is saved: a resumed run seeds them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from slipway.rng.seeding import derive
from trainer.data.seeds import DROPOUT, stream

CPU = torch.device("cpu")
FAMILIES = (
    *("alexnet", "convnext", "efficientnet", "googlenet", "inception", "maxvit", "mnasnet", "mobilenetv2"),
    *("mobilenetv3", "regnet", "resnet", "shufflenetv2", "squeezenet", "vgg", "vision_transformer"),
)
"""torchvision's models that draw random numbers only in their layers; DenseNet and Swin call ``F.dropout`` themselves.

Families that are not listed, such as future ones, keep a hook on each module.
"""
MODULES_WITHOUT_DRAWS = frozenset(
    {"trainer.model.small", "torchvision.ops.misc", *(f"torchvision.models.{name}" for name in FAMILIES)}
)
"""Python modules whose layers draw random numbers only in the layers that they call."""


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


def seeder_of(
    version: int, model: nn.Module, device: torch.device, *, seed: int, rank: int, user_defined: bool
) -> Seeder:
    """Return the seeder of ``version`` for the layers of ``model``, whose first layers are on ``device``.

    ``user_defined``: whether the model is not one of the trainer's own or of torchvision's.
    """
    if version == StepSeeder.version:
        return StepSeeder(device, seed=seed, rank=rank)
    return ModuleSeeder(model, seed=seed, rank=rank, user_defined=user_defined)


class ModuleSeeder:
    """Seeder that runs before each module, from (seed, rank, step, micro-batch, module name): version 2.

    So a model draws the same numbers whole or split, on one or several devices, with any schedule.

    A module draws from the last seed that was set before, by its own hook or by that of a module that it has called.
    Models of the trainer and of torchvision draw before such a call, so only the modules that draw need hooks. The code
    of a user-defined model may draw at any point: it keeps hooks on all modules but plain torch.nn layers.
    """

    version = 2

    def __init__(self, model: nn.Module, *, seed: int, rank: int, user_defined: bool) -> None:
        """Register hooks on the modules of ``model`` that may draw random numbers."""
        needs_no_hook = uses_no_randomness if user_defined else draws_nothing
        self._base = int(stream(DROPOUT, seed, rank).integers(2**62))
        self._step = self._micro = 0
        self._hooks = [
            module.register_forward_pre_hook(partial(self._seed, _key(name)))
            for name, module in model.named_modules()
            if not needs_no_hook(module)
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
        or (isinstance(module, nn.RNNBase) and module.dropout)
    )


def draws_nothing(module: nn.Module) -> bool:
    """Return whether ``module``, of a model of the trainer or of torchvision, draws no random numbers.

    A layer with probability 0 draws none; its attribute is ``p``, or ``dropout`` for attention.
    """
    if uses_no_randomness(module) or type(module).__module__ in MODULES_WITHOUT_DRAWS:
        return True
    return 0 in (getattr(module, "p", None), getattr(module, "dropout", None))


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

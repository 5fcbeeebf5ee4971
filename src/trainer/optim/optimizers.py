"""The optimisers by name, and the learning rate as a function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Adadelta, Adam, AdamW, Optimizer

from trainer.config.errors import choose
from trainer.config.settings import OptimConfig
from trainer.optim.fused_sgd import FusedSGD

OPTIMIZERS: dict[str, Callable[[OptimConfig], tuple[Callable[..., Optimizer], dict[str, Any]]]] = {
    "sgd": lambda config: (FusedSGD, {"momentum": config.momentum, "fused": True}),
    "adadelta": lambda _config: (Adadelta, {"foreach": True}),  # torch has no fused Adadelta
    "adam": lambda _config: (Adam, {"fused": True}),
    "adamw": lambda _config: (AdamW, {"fused": True}),
}


def build_optimizer(config: OptimConfig, parameters: Iterable[nn.Parameter]) -> Optimizer:
    """Return the configured optimiser; its learning rate is set before each step (see LearningRate).

    The parameters of normalisation layers, and biases, are those of fewer than two dimensions.
    """
    cls, arguments = choose(OPTIMIZERS, config.optimizer, what="optimizer")(config)
    everything = list(parameters)
    groups: list[dict[str, Any]] = [{"params": everything}]
    if not config.decay_norm_bias:
        groups = [
            {"params": [parameter for parameter in everything if parameter.ndim > 1]},
            {"params": [parameter for parameter in everything if parameter.ndim <= 1], "weight_decay": 0.0},
        ]
    return cls(groups, lr=config.lr, weight_decay=config.weight_decay, **arguments)


def state_copies(config: OptimConfig) -> int:
    """Return how many tensors of a parameter's size the configured optimiser keeps for each."""
    parameter = nn.Parameter(torch.ones(2, 3))
    optimizer = build_optimizer(config, [parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return sum(isinstance(v, torch.Tensor) and v.shape == parameter.shape for v in optimizer.state[parameter].values())


SCHEDULES: dict[str, Callable[[OptimConfig, int, float], float]] = {
    "constant": lambda _config, _epoch, _progress: 1.0,
    "step": lambda config, epoch, _progress: config.gamma ** (epoch // config.step_epochs),
    "cosine": lambda _config, _epoch, progress: 0.5 * (1 + math.cos(math.pi * progress)),
}
"""Share of the peak rate, given the epoch and the progress from 0 (after the warm-up) to 1 (the end)."""


class LearningRate:
    """The learning rate of each optimiser step, by the epochs behind it.

    A pure function of the position: resuming needs no state of it, and a run that goes on with another batch size or
    world size goes on along the same curve.
    """

    def __init__(self, config: OptimConfig, *, epochs: int, world_size: int) -> None:
        """Plan ``epochs`` for ``world_size`` ranks."""
        scale = {"none": 1.0, "linear": float(world_size), "sqrt": math.sqrt(world_size)}[config.lr_scaling]
        self._config = config
        self._peak = config.lr * scale
        self._epochs = epochs

    def at(self, begin: float, end: float) -> float:
        """Return the rate of the step that leads from epoch ``begin`` to epoch ``end``, counted from 0.0."""
        warmup = self._config.warmup_epochs
        if begin < warmup:
            return self._peak * min(1.0, end / warmup)
        progress = min(1.0, (begin - warmup) / (self._epochs - warmup)) if warmup < self._epochs else 1.0
        return self._peak * SCHEDULES[self._config.schedule](self._config, int(begin), progress)


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Let all parameter groups take their next step with ``rate``."""
    for group in optimizer.param_groups:
        group["lr"] = rate

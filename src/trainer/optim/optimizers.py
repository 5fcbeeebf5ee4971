"""Optimizers by name, and the learning rate schedules."""

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
    """Return the configured optimizer; the caller sets its learning rate before each step (see LearningRate).

    Parameters with fewer than two dimensions are taken to be normalization parameters and biases.
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
    """Return the number of state tensors of a parameter's shape that the configured optimizer keeps per parameter."""
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
"""Fraction of the peak rate, given the epoch and the progress from 0 (after the warm-up) to 1 (the end)."""


class LearningRate:
    """The learning rate of each optimizer step, as a function of the completed epochs.

    It depends only on the position, so it has no state to save. A run that resumes with a different batch size or world
    size follows the same curve.
    """

    def __init__(self, config: OptimConfig, *, epochs: int, world_size: int) -> None:
        """Plan ``epochs`` epochs on ``world_size`` ranks."""
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
    """Set the learning rate of all parameter groups to ``rate``."""
    for group in optimizer.param_groups:
        group["lr"] = rate

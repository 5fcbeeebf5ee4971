"""Models by name: two small models, torchvision's classifiers and user-defined models."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from trainer.config.errors import choose
from trainer.config.plugin import SEPARATOR
from trainer.config.settings import Config, ModelConfig
from trainer.model.normalise import memory_layout
from trainer.model.small import MLP, MnistCNN
from trainer.model.torchvision_models import torchvision_builders
from trainer.model.user_model import build_plugin_model
from trainer.model.weights import load_weights

Shape = tuple[int, int, int]
Builder = Callable[[Shape, int], nn.Module]

SMALL: dict[str, Builder] = {"mnist-cnn": MnistCNN, "mlp": MLP}


def initial_model(config: Config, *, shape: Shape, classes: int) -> nn.Module:
    """Return a run's initial model on the CPU, with the configured seed, dtype and memory format.

    Raises:
        ConfigError: as ``build_model`` does.
    """
    torch.manual_seed(config.train.seed)
    model = build_model(config.model, shape=shape, classes=classes).to(getattr(torch, config.train.dtype))
    return model.to(memory_format=memory_layout(config.model))  # type: ignore[call-overload]


def build_model(config: ModelConfig, *, shape: Shape, classes: int) -> nn.Module:
    """Return the configured model for images of ``shape`` (channels, height, width), with random or loaded weights.

    The model maps float [n, channels, height, width] to logits [n, classes].

    Raises:
        ConfigError: for an unknown name, a shape too small for the model, or weights that do not fit.
    """
    model = _builder(config.arch)(shape, classes)
    if config.weights:
        load_weights(model, config.weights)
    return model


def _builder(name: str) -> Builder:
    if SEPARATOR in name:
        return partial(build_plugin_model, name)
    return SMALL.get(name) or choose(SMALL | torchvision_builders(), name, what="model (--arch)")

"""User-defined models: ``--arch package.module:factory``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trainer.config.errors import ConfigError
from trainer.config.plugin import call_factory, reason_of


def build_plugin_model(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ``factory(shape, classes)``, a model for images of ``shape`` (channels, height, width).

    The model must map float [n, channels, height, width] to logits [n, classes]. It is tested with two black images.

    Raises:
        ConfigError: if the factory cannot be imported or fails, or its result is not such a model.
    """
    model = call_factory("--arch", name, shape, classes)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            "bad-plugin", f"--arch {name} returned a {type(model).__name__}: it must return a torch.nn.Module."
        )
    training = model.training
    try:
        with torch.no_grad():
            logits = model.eval()(torch.zeros(2, *shape))
    except Exception as error:
        raise ConfigError(
            "bad-plugin", f"--arch {name}: the model fails for images {list(shape)}: {reason_of(error)}"
        ) from error
    model.train(training)
    if not isinstance(logits, Tensor) or logits.shape != (2, classes):
        found = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ConfigError(
            "bad-plugin", f"--arch {name}: for 2 images the model returned {found}: it must be [2, {classes}]."
        )
    return model

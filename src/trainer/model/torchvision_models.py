"""torchvision's classifiers, adapted to a data set's number of classes, channels and pixels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer.config.errors import ConfigError
from trainer.model.meta import tensors_on_meta
from trainer.model.torchvision_on_cpu import import_torchvision

SMALL_IMAGE = 64
"""Edge length in pixels below which the strided first layers of ImageNet models would shrink images too much."""


def torchvision_builders() -> dict[str, Callable[[tuple[int, int, int], int], nn.Module]]:
    """Return a builder for each classification model, by its name in ``torchvision.models``."""
    models = import_torchvision().models
    return {name: functools.partial(_build, name) for name in models.list_models(module=models)}


def _build(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    channels, height, width = shape
    models = import_torchvision().models
    arguments: dict[str, Any] = {"weights": None, "num_classes": classes}
    if name.startswith("vit_"):  # the only family whose weights depend on the image size
        if height != width:
            raise ConfigError("image-size", f"{name} needs square images, not {height} x {width}.")
        arguments["image_size"] = height
    elif name in {"googlenet", "inception_v3"}:  # their auxiliary heads return a tuple in training
        arguments |= {"aux_logits": False, "init_weights": True}
    try:
        model = models.get_model(name, **arguments)
        _fit_stem(model, channels, small=min(height, width) < SMALL_IMAGE and not name.startswith("vit_"))
        _check_image_size(model, shape)
    except (ValueError, RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            "image-size", f"{name} cannot be built for images of {height} x {width}: {reason}."
        ) from error
    return model


def _fit_stem(model: nn.Module, channels: int, *, small: bool) -> None:
    """Replace the first convolution if its channels do not fit; for ``small`` images, remove early downsampling.

    The small stem is that of K. He et al., Deep residual learning, 2016, section 4.2: a 3 x 3 convolution with stride 1
    and no pooling after it.
    """
    name, first = next((name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d))
    strided = small and max(first.stride) > 1
    if first.in_channels != channels or strided:
        geometry = (
            {"kernel_size": 3, "stride": 1, "padding": 1}
            if strided
            else {key: getattr(first, key) for key in ("kernel_size", "stride", "padding")}
        )
        model.set_submodule(name, nn.Conv2d(channels, first.out_channels, bias=first.bias is not None, **geometry))
    modules = dict(model.named_modules())
    for pool in ("maxpool", "features.pool0"):  # ResNet-like models; DenseNet
        if strided and pool in modules:
            model.set_submodule(pool, nn.Identity())


def _check_image_size(model: nn.Module, shape: tuple[int, int, int]) -> None:
    """Run ``model`` on the meta device with one image of ``shape``: some models shrink small images to nothing."""
    model.eval()
    torch.func.functional_call(model, tensors_on_meta(model), (torch.empty(1, *shape, device="meta"),))
    model.train()

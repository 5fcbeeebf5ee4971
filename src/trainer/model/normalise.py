"""Normalization of images for the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trainer.config.settings import Config, ModelConfig


@dataclass(frozen=True)
class Normalise:
    """Moves images to a device and normalizes them to mean 0 and standard deviation 1."""

    mean: Tensor
    """Mean of each channel on a scale of 0 to 255: [1, c, 1, 1]."""
    std: Tensor
    """Standard deviation of each channel, on the same scale and with the same shape."""
    layout: torch.memory_format

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the model's input and weights."""
        return self.mean.dtype

    def __call__(self, images: Tensor) -> Tensor:
        """Return uint8 images [n, c, h, w] as floats on the device."""
        images = images.to(self.mean.device, non_blocking=True)
        found = torch.empty(images.shape, dtype=self.dtype, device=images.device, memory_format=self.layout)
        return torch.sub(images, self.mean, out=found).div_(self.std)  # the subtraction converts too


def normalisation(config: Config, mean_std: tuple[Tensor, Tensor], device: torch.device) -> Normalise:
    """Return the normalization for channels of this mean and standard deviation, each [c] on a scale of 0 to 1."""
    dtype = getattr(torch, config.train.dtype)
    mean, std = ((255 * value).to(device, dtype).view(1, -1, 1, 1) for value in mean_std)
    return Normalise(mean, std, memory_layout(config.model))


def memory_layout(model: ModelConfig) -> torch.memory_format:
    """Return the memory format of images and convolution weights."""
    return torch.channels_last if model.channels_last is True else torch.contiguous_format

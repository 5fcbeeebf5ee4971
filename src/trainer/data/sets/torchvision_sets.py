"""MNIST and CIFAR-10, read from files by torchvision and held in memory."""

from __future__ import annotations

from typing import Any

import torch

from trainer.config.errors import ConfigError
from trainer.config.settings import DataConfig
from trainer.data.base import Splits, in_memory_splits
from trainer.model.torchvision_on_cpu import import_torchvision


def mnist(config: DataConfig) -> Splits:
    """Return MNIST: 60,000 training and 10,000 validation grey images of 28 x 28 pixels (Y. LeCun et al., 1998)."""
    return _read(config, "MNIST")


def cifar10(config: DataConfig) -> Splits:
    """Return CIFAR-10: 50,000 training and 10,000 validation color images of 32 x 32 pixels (A. Krizhevsky, 2009)."""
    return _read(config, "CIFAR10")


def _read(config: DataConfig, name: str) -> Splits:
    datasets = import_torchvision().datasets
    try:
        parts = [
            getattr(datasets, name)(config.data_dir, train=train, download=config.download) for train in (True, False)
        ]
    except Exception as error:  # torchvision's readers raise many types for damaged files
        remedy = "check the network" if config.download else "set --download to fetch it, or --data-dir to its folder"
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(": ")
        raise ConfigError("no-data", f"cannot read {name} from {config.data_dir!r} ({reason}): {remedy}.") from error
    train, validation = ((_as_images(part.data), torch.as_tensor(part.targets)) for part in parts)
    return in_memory_splits(
        train, validation, classes=tuple(parts[0].classes), padding=config.crop_padding, flip=config.flip
    )


def _as_images(data: Any) -> torch.Tensor:
    images = torch.as_tensor(data)
    return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()  # noqa: PLR2004

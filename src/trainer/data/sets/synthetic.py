"""Random noise images of any shape and number, to measure speed without a disk."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trainer.config.settings import DataConfig
from trainer.data import seeds
from trainer.data.base import Draws, Fetched, Ids, Splits, channel_statistics

POOL = 256
"""Number of different images in memory; samples repeat them, so that any number of samples fits in memory."""


@dataclass(frozen=True)
class SyntheticDataset:
    """``len(labels)`` samples that cycle through the images of a small pool."""

    pool: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean_std: tuple[Tensor, Tensor]
    shape: tuple[int, int, int]
    in_memory: bool = field(default=True, init=False)
    draws: int = field(default=0, init=False)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.labels)

    def fetch(self, ids: Ids, draws: Draws | None) -> Fetched:  # noqa: ARG002 -- noise needs no augmentation
        """Return the images ``ids``; see Dataset."""
        return Fetched(self.pool[torch.from_numpy(ids % len(self.pool))], [])

    def describe(self, sample: int) -> str:
        """Return the number of the sample."""
        return f"sample {sample}"


def synthetic(config: DataConfig) -> Splits:
    """Return ``synthetic_samples`` training samples, and an eighth as many validation samples."""
    generator = seeds.stream(seeds.SYNTHETIC, config.split_seed)
    count, shape = config.synthetic_samples, config.synthetic_shape
    pool = torch.from_numpy(generator.integers(0, 256, (min(count, POOL), *shape), dtype="uint8"))
    labels = torch.from_numpy(generator.integers(0, config.synthetic_classes, count))
    classes = tuple(map(str, range(config.synthetic_classes)))
    statistics = channel_statistics(pool)
    train, validation = (
        SyntheticDataset(pool, part, classes, statistics, shape) for part in (labels, labels[: max(1, count // 8)])
    )
    return Splits(train, validation)

"""Random noise images of any shape and number, to measure speed without a disk."""

from __future__ import annotations

import torch

from trainer.config.settings import DataConfig
from trainer.data import seeds
from trainer.data.base import InMemoryDataset, Splits, channel_statistics

POOL = 256
"""Number of different images in memory; samples repeat them, so that any number of samples fits in memory."""


def synthetic(config: DataConfig) -> Splits:
    """Return ``synthetic_samples`` training samples, and an eighth as many validation samples."""
    generator = seeds.stream(seeds.SYNTHETIC, config.split_seed)
    count, shape = config.synthetic_samples, config.synthetic_shape
    pool = torch.from_numpy(generator.integers(0, 256, (min(count, POOL), *shape), dtype="uint8"))
    labels = torch.from_numpy(generator.integers(0, config.synthetic_classes, count))
    classes = tuple(map(str, range(config.synthetic_classes)))
    statistics = channel_statistics(pool)
    train, validation = (
        InMemoryDataset(pool, part, classes, statistics, samples=len(part))
        for part in (labels, labels[: max(1, count // 8)])
    )
    return Splits(train, validation)

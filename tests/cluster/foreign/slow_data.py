"""A model and a data set for the trainer. An epoch takes seconds, with almost no computation."""

import time

import torch
from torch import nn

from trainer.data.base import InMemoryDataset, Splits, in_memory_splits

SECONDS_PER_IMAGE = 0.006
TRAINING, VALIDATION = 960, 320


class SlowDataset(InMemoryDataset):
    """A data set with slow fetches."""

    def fetch(self, ids, draws):
        time.sleep(SECONDS_PER_IMAGE * len(ids))
        return super().fetch(ids, draws)


def net(shape, classes):
    """Return a model with checkpoints of 10 MB, which take some time to save."""
    channels, height, width = shape
    inputs, hidden = channels * height * width, 900
    layers = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, classes)]
    return nn.Sequential(nn.Flatten(), *layers)


def noise(config):
    """Return random images and labels, whose loss never reaches zero."""
    draw, count = torch.Generator().manual_seed(0), TRAINING + VALIDATION
    images = torch.randint(0, 256, (count, 1, 8, 8), generator=draw, dtype=torch.uint8)
    labels = torch.randint(0, 10, (count,), generator=draw)
    parts = in_memory_splits(
        (images[:TRAINING], labels[:TRAINING]),
        (images[TRAINING:], labels[TRAINING:]),
        classes=tuple("0123456789"),
        padding=config.crop_padding,
        flip=config.flip,
    )
    return Splits(*(SlowDataset(part.images, part.labels, part.classes, part.mean_std, part.padding) for part in parts))

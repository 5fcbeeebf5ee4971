"""A data set of more than a million images of four pixels, for the trainer: their order is computed part by part."""

import torch
from torch import nn

from trainer.data.base import in_memory_splits

TRAINING, VALIDATION = (1 << 20) + 5000, 1000


def net(shape, classes):  # noqa: ARG001 -- the trainer gives both
    """Return a model that takes next to no time."""
    return nn.Sequential(nn.Flatten(), nn.Linear(4, classes))


def pixels(config):
    """Return random images, each of the class of its brightest column."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (TRAINING + VALIDATION, 1, 2, 2), generator=draw, dtype=torch.uint8)
    labels = (images[:, 0].float().mean(1).diff()[:, 0] > 0).long()
    return in_memory_splits(
        (images[:TRAINING], labels[:TRAINING]),
        (images[TRAINING:], labels[TRAINING:]),
        classes=("left", "right"),
        padding=config.crop_padding,
        flip=config.flip,
    )

"""A model with a branch that a step uses only if one of its samples selects it."""

from torch import nn

BRIGHT = 0.5
"""Threshold of normalized values: 7 % of the digits have a brighter last row."""


class Routed(nn.Module):
    """A linear layer for all samples, and another branch for samples with a bright last row."""

    def __init__(self, pixels, classes):
        super().__init__()
        self.common = nn.Linear(pixels, classes)
        self.rare = nn.Sequential(nn.Linear(pixels, 16), nn.ReLU(), nn.Linear(16, classes))

    def forward(self, images):
        bright = images[:, 0, -1].mean(1) > BRIGHT
        pixels = images.flatten(1)
        logits = self.common(pixels)
        if bright.any():
            logits = logits.index_add(0, bright.nonzero().flatten(), self.rare(pixels[bright]))
        return logits


def build(shape, classes):
    channels, height, width = shape
    return Routed(channels * height * width, classes)

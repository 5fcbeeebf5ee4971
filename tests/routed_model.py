"""A model of two branches, each for some of the samples: a step takes a branch only where a sample of it is there."""

from torch import nn

BRIGHT = 0.5
"""Of normalised values: 7 % of the digits have a brighter last row."""


class Routed(nn.Module):
    """A linear layer for all samples, another one for those whose last row is bright."""

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

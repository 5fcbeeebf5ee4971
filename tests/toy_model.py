"""A small model with the features that make splitting hard: randomness and buffers."""

import torch
from torch import nn
from torchvision.ops import StochasticDepth


class Block(nn.Module):
    """A residual block with stochastic depth and batch norm."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.depth = StochasticDepth(0.3, "row")

    def forward(self, x):
        return x + self.depth(torch.relu(self.norm(self.conv(x))))


class Toy(nn.Module):
    """A model whose forward pass is more than a chain of its children."""

    def __init__(self, shape, classes):
        super().__init__()
        self.stem = nn.Conv2d(shape[0], 6, 3)
        self.blocks = nn.Sequential(Block(6), Block(6), nn.Dropout(0.2), Block(6))
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(6, classes))

    def forward(self, x):
        return self.head(torch.relu(self.blocks(self.stem(x))).mean((2, 3)))


def build(shape, classes):
    return Toy(shape, classes)

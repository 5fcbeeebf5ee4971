"""A model that each rank initializes differently, like a factory that sets its own seed."""

import os

import torch
from torch import nn


def build(shape, classes):
    channels, height, width = shape
    torch.manual_seed(int(os.environ.get("RANK", "0")))
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 8), nn.ReLU(), nn.Linear(8, classes))

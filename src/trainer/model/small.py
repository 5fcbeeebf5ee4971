"""Small models for small images."""

from __future__ import annotations

import itertools
import math

import torch.nn.functional as F
from torch import Tensor, nn

from trainer.config.errors import ConfigError


class MnistCNN(nn.Module):
    """The network of PyTorch's MNIST example, for any input size.

    Two 3 x 3 convolutions, 2 x 2 max-pooling, two linear layers, dropout before each of these.
    Source: https://github.com/pytorch/examples/tree/main/mnist
    """

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        """Build for images of ``shape`` (channels, height, width); both edges must have at least 6 pixels."""
        super().__init__()
        channels, height, width = shape
        if min(height, width) < 6:  # noqa: PLR2004
            raise ConfigError(
                "image-size", f"mnist-cnn needs images of at least 6 x 6 pixels, not {height} x {width}; try mlp."
            )
        self.conv1 = nn.Conv2d(channels, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128)
        self.fc2 = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Map float [n, channels, height, width] to logits [n, classes]."""
        hidden = F.relu(self.conv2(F.relu(self.conv1(images))))
        hidden = self.dropout1(F.max_pool2d(hidden, 2)).flatten(1)
        return self.fc2(self.dropout2(F.relu(self.fc1(hidden))))


class MLP(nn.Sequential):
    """Five linear layers with ReLU between them: pixels, 512, 128, 64, 32, classes. No dropout, no batch norm."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        """Build for images of ``shape`` (channels, height, width)."""
        widths = [math.prod(shape), 512, 128, 64, 32]
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers, nn.Linear(widths[-1], classes))

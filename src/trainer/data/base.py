"""Interface of data sets: numbered samples, fetched by lists of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slipway.data.device_batches import to_device
from trainer.config.errors import ConfigError
from trainer.data.augment import crop_flip

Ids = NDArray[np.int64]
Draws = NDArray[np.float32]


class Fetched(NamedTuple):
    """Images of some samples; ``bad`` lists the positions of those that could not be read and are black."""

    images: Tensor
    bad: list[int]
    reasons: Sequence[str] = ()
    """Reason for each entry of ``bad``; may be shorter than ``bad`` if reasons are unknown."""


class Dataset(Protocol):
    """Samples 0 to len - 1, each with an image and a class; all images have the same shape.

    ``fetch`` is a pure function of its arguments, so that it can run in any process and in any order.
    """

    @property
    def labels(self) -> Tensor:
        """Class of each sample: int64 [n]."""
        ...

    @property
    def classes(self) -> tuple[str, ...]:
        """Name of each class."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of each image."""
        ...

    @property
    def mean_std(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel of the training split, for values from 0 to 1: float64 [c]."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether fetching is so fast that worker processes would only slow it down."""
        ...

    @property
    def draws(self) -> int:
        """Number of random numbers to augment one sample; 0 without augmentation."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def fetch(self, ids: Ids, draws: Draws | None) -> Fetched:
        """Return images uint8 [len(ids), c, h, w], augmented by ``draws`` float32 [len(ids), self.draws] in [0, 1)."""
        ...

    def describe(self, sample: int) -> str:
        """Return the sample's name for messages: its path or its number."""
        ...


class Splits(NamedTuple):
    """Training and validation split of a data set, with the same classes in the same order."""

    train: Dataset
    validation: Dataset


@dataclass(frozen=True)
class InMemoryDataset:
    """Images held as one uint8 tensor [n, c, h, w], indexed and augmented a batch at a time, on the tensor's device."""

    images: Tensor
    labels: Tensor
    """On the host: int64 [number of samples]."""
    classes: tuple[str, ...]
    mean_std: tuple[Tensor, Tensor]
    padding: int = 0
    flip: bool = False
    samples: int | None = None
    """Number of samples if images repeat: sample i then has image i modulo the number of images."""
    in_memory: bool = field(default=True, init=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def draws(self) -> int:
        """Three numbers (vertical shift, horizontal shift, flip), or 0 without augmentation."""
        return 3 if self.padding or self.flip else 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.images) if self.samples is None else self.samples

    def to(self, device: torch.device) -> InMemoryDataset:
        """Return the data set with its images on ``device``."""
        return replace(self, images=self.images.to(device))

    def fetch(self, ids: Ids, draws: Draws | None) -> Fetched:
        """Return the images ``ids``; see Dataset."""
        device = self.images.device
        images = self.images[to_device(torch.from_numpy(ids % len(self.images)), device)]
        if draws is not None:
            numbers = to_device(torch.from_numpy(draws), device)
            images = crop_flip(images, numbers, padding=self.padding, flip=self.flip)
        return Fetched(images, [])

    def describe(self, sample: int) -> str:
        """Return the number of the sample."""
        return f"sample {sample}"


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of uint8 images [n, c, h, w], for values from 0 to 1."""
    # Use histograms: a float64 copy of a whole set would take eight times its memory.
    values = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in images.unbind(1)]).double()
    total = counts.sum(1)
    mean = (counts @ values) / total
    variance = (counts * (values - mean[:, None]).square()).sum(1) / (total - 1)
    return mean, variance.sqrt()


def in_memory_splits(
    train: tuple[Tensor, Tensor],
    validation: tuple[Tensor, Tensor],
    *,
    classes: tuple[str, ...],
    padding: int,
    flip: bool,
) -> Splits:
    """Return a training split with augmentation and a validation split, both held in memory.

    Args:
        train: images, uint8 [n, c, h, w], and labels, int64 [n].
        validation: the same for validation.
        classes: name of each label.
        padding: pixels added around a training image before a random crop.
        flip: whether to mirror training images at random.

    Raises:
        ConfigError: if images have another dtype or number of dimensions.
    """
    for images, _ in (train, validation):
        if images.dtype != torch.uint8 or images.dim() != len("nchw"):
            raise ConfigError(
                "bad-plugin",
                f"in_memory_splits: images must be a uint8 tensor [n, c, h, w], not {images.dtype} "
                f"{list(images.shape)}; other samples need a user script (docs/howto/session.md).",
            )
    statistics = channel_statistics(train[0])
    return Splits(
        InMemoryDataset(*train, classes, statistics, padding, flip),
        InMemoryDataset(*validation, classes, statistics),
    )

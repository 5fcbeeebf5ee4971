"""What a data set is to the trainer: numbered samples that are fetched by lists of ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.config.errors import ConfigError
from trainer.data.augment import crop_flip

Ids = NDArray[np.int64]
Draws = NDArray[np.float32]


class Fetched(NamedTuple):
    """Images of some samples; the ``bad`` ones, by position, could not be read and are black."""

    images: Tensor
    bad: list[int]
    reasons: Sequence[str] = ()
    """Why each of those could not be read, where that is known."""


class Dataset(Protocol):
    """Samples 0 to len - 1, each an image of one shape and its class.

    ``fetch`` is a pure function of its arguments, so that it can run in any process and in any order. A set packed into
    a single file fits behind the same names.
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
        """Mean and standard deviation of each channel of the training part, for values from 0 to 1: float64 [c]."""
        ...

    @property
    def in_memory(self) -> bool:
        """Whether fetching is so cheap that worker processes would only slow it down."""
        ...

    @property
    def draws(self) -> int:
        """Random numbers that augmenting one sample takes; 0 if it is not augmented."""
        ...

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def fetch(self, ids: Ids, draws: Draws | None) -> Fetched:
        """Return images uint8 [len(ids), c, h, w], augmented by ``draws`` float32 [len(ids), self.draws] in [0, 1)."""
        ...

    def describe(self, sample: int) -> str:
        """Return what a person calls this sample: its path or its number."""
        ...


class Splits(NamedTuple):
    """The two parts of a data set; both number the same classes alike."""

    train: Dataset
    validation: Dataset


@dataclass(frozen=True)
class InMemoryDataset:
    """Images held as one uint8 tensor [n, c, h, w], indexed and augmented a batch at a time."""

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    mean_std: tuple[Tensor, Tensor]
    padding: int = 0
    flip: bool = False
    in_memory: bool = field(default=True, init=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def draws(self) -> int:
        """Vertical shift, horizontal shift, flip."""
        return 3 if self.padding or self.flip else 0

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.images)

    def fetch(self, ids: Ids, draws: Draws | None) -> Fetched:
        """Return the images ``ids``; see Dataset."""
        images = self.images[torch.from_numpy(ids)]
        if draws is not None:
            images = crop_flip(images, torch.from_numpy(draws), padding=self.padding, flip=self.flip)
        return Fetched(images, [])

    def describe(self, sample: int) -> str:
        """Return the number of the sample."""
        return f"sample {sample}"


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of each channel of uint8 images [n, c, h, w], for values from 0 to 1."""
    # By histogram: a float copy of a whole set would take eight times its memory.
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
    """Return two parts, each given as (images, labels), of which the first is augmented.

    Args:
        train: images, uint8 [n, c, h, w], and labels, int64 [n].
        validation: likewise.
        classes: the name of each label.
        padding: pixels around a training image, of which a random part is cropped.
        flip: whether training images are mirrored at random.

    Raises:
        ConfigError: for images of another type or shape.
    """
    for images, _ in (train, validation):
        if images.dtype != torch.uint8 or images.dim() != len("nchw"):
            raise ConfigError(
                "bad-plugin",
                f"in_memory_splits: images must be a uint8 tensor [n, c, h, w], not {images.dtype} "
                f"{list(images.shape)}; other samples need a training script of your own (docs/session.md).",
            )
    statistics = channel_statistics(train[0])
    return Splits(
        InMemoryDataset(*train, classes, statistics, padding, flip),
        InMemoryDataset(*validation, classes, statistics),
    )

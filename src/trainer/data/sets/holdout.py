"""Stratified holdout of validation samples, for data sets without a validation split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.config.errors import ConfigError
from trainer.data import seeds


def stratified_split(labels: Tensor, *, fraction: float, seed: int, names: Sequence[str] = ()) -> tuple[Tensor, Tensor]:
    """Return the ids of the training and of the held-out samples, both ascending, with the same share of each class.

    Both splits have at least one sample of each class.

    Args:
        labels: class of each sample, int64 [n].
        fraction: share of samples to hold out.
        seed: of the shuffle.
        names: of the classes, for the error; by default their numbers.

    Raises:
        ConfigError: if a class has only one sample.
    """
    generator = seeds.stream(seeds.SPLIT, seed)
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for label, count in enumerate(labels.bincount().tolist()):
        if count == 1:
            raise ConfigError(
                "class-too-small",
                f"cannot hold out val_fraction={fraction}: class {names[label] if names else label} "
                "has only one sample, but needs at least two.",
            )
        if count:
            ids = generator.permutation(np.flatnonzero(labels == label))
            held_out[ids[: min(max(1, round(fraction * count)), count - 1)]] = True
    return (~held_out).nonzero().flatten(), held_out.nonzero().flatten()

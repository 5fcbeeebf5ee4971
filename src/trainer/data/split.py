"""Holding out a part of a data set that has no test part of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from trainer.errors import ConfigError


def stratified_split(labels: Tensor, *, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the ids of the training and of the held-out samples, both ascending, in each class in proportion.

    Args:
        labels: class of each sample, int64 [n].
        fraction: share held out.
        seed: of the shuffle.

    Raises:
        ConfigError: if a class has too few samples to stand on both sides.
    """
    from sklearn.model_selection import train_test_split  # noqa: PLC0415 -- slow to import, and not always needed

    try:
        train, test = train_test_split(
            torch.arange(len(labels)).numpy(), test_size=fraction, random_state=seed, stratify=labels.numpy()
        )
    except ValueError as error:
        raise ConfigError(f"cannot hold out val_fraction={fraction} of {len(labels)} samples: {error}") from error
    return torch.from_numpy(train).sort().values, torch.from_numpy(test).sort().values

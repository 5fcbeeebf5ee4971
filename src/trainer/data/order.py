"""Random draws of an epoch: the order of its samples, and the numbers that augment each sample.

Both depend on seed and epoch only. For up to a million samples they are drawn in advance, as tables. For more, tables
would take seconds and hundreds of megabytes on each rank, so each value is computed on demand.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from slipway.rng.permutation import LARGE, Permutation, hash32
from trainer.data import seeds
from trainer.data.base import Draws, Ids
from trainer.data.sampler import Order

TABLES, KEYED = VERSIONS = (2, 3)
"""Versions of the draws. A version number is raised when its order or the split in sets/holdout.py changes. Checkpoints
record it, because only the same version resumes exactly."""


class Epoch(Order, Protocol):
    """One epoch of a data set: the order of its samples, and the random numbers for their augmentation."""

    def draws(self, ids: Ids) -> Draws | None:
        """Return the numbers that augment samples: float32 [len(ids), count] in [0, 1); None without augmentation."""
        ...


def version_for(samples: int) -> int:
    """Return the version for a new run on ``samples`` samples."""
    return KEYED if samples > LARGE else TABLES


def epoch_of(version: int, samples: int, *, seed: int, epoch: int, draws: int = 0) -> Epoch:
    """Return epoch ``epoch`` of ``samples`` samples; each sample needs ``draws`` numbers for its augmentation."""
    kind = Keyed if version == KEYED else Tables
    return kind(samples, seed=seed, epoch=epoch, draws=draws)


class Tables:
    """Epoch with tables of the order and of all samples' random numbers."""

    def __init__(self, samples: int, *, seed: int, epoch: int, draws: int) -> None:
        """Draw the tables."""
        self._order = seeds.stream(seeds.ORDER, seed, epoch).permutation(samples)
        self._draws = None
        if draws:
            self._draws = seeds.stream(seeds.AUGMENTATION, seed, epoch).random((samples, draws), dtype=np.float32)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._order)

    def __getitem__(self, places: slice) -> Ids:
        """Return the samples at some positions."""
        return self._order[places]

    def draws(self, ids: Ids) -> Draws | None:
        """Return the numbers that augment samples."""
        return None if self._draws is None else self._draws[ids]


class Keyed:
    """Epoch whose order and random numbers are functions of a key and of the position or the sample."""

    def __init__(self, samples: int, *, seed: int, epoch: int, draws: int) -> None:
        """Draw the keys for order and augmentation."""
        order, augmentation = (
            int(seeds.stream(purpose, seed, epoch).integers(2**63)) for purpose in (seeds.ORDER, seeds.AUGMENTATION)
        )
        self._order = Permutation(samples, key=order)
        self._key, self._count = augmentation, draws

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._order)

    def __getitem__(self, places: slice) -> Ids:
        """Return the samples at some positions."""
        begin, end, _ = places.indices(len(self._order))
        ids: Ids = self._order.between(begin, end).numpy()
        return ids

    def draws(self, ids: Ids) -> Draws | None:
        """Return the numbers that augment samples."""
        if not self._count:
            return None
        numbers = torch.from_numpy(ids)[:, None] * self._count + torch.arange(self._count)
        found: Draws = (hash32(numbers, self._key) >> 8).float().mul_(2.0**-24).numpy()  # 24 bits fill a float32
        return found

"""What an epoch draws for its samples: the order in which they come, and the numbers that augment each of them.

Both depend on seed and epoch alone. Up to a million samples they are drawn at once, as tables. For more, that would
take seconds and hundreds of megabytes on each rank, so they are computed where they are needed.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from slipway.rng.permutation import LARGE, Permutation, hashed
from trainer.data import seeds
from trainer.data.base import Draws, Ids
from trainer.data.sampler import Order

TABLES, KEYED = VERSIONS = (2, 3)
"""Ways to draw them. One is raised when its order or split.py changes: checkpoints record it, and no other goes on
exactly."""


class Epoch(Order, Protocol):
    """One epoch of a data set: the order of its samples, and what augments them."""

    def draws(self, ids: Ids) -> Draws | None:
        """Return the numbers that augment samples: float32 [len(ids), count] in [0, 1); None where that takes none."""
        ...


def version_for(samples: int) -> int:
    """Return how a new run on so many samples draws."""
    return KEYED if samples > LARGE else TABLES


def epoch_of(version: int, samples: int, *, seed: int, epoch: int, draws: int = 0) -> Epoch:
    """Return that epoch of so many samples, each of which takes ``draws`` numbers to augment it."""
    kind = Keyed if version == KEYED else Tables
    return kind(samples, seed=seed, epoch=epoch, draws=draws)


class Tables:
    """Tables of all samples."""

    def __init__(self, samples: int, *, seed: int, epoch: int, draws: int) -> None:
        """Draw them."""
        self._order = seeds.stream(seeds.ORDER, seed, epoch).permutation(samples)
        self._draws = None
        if draws:
            self._draws = seeds.stream(seeds.AUGMENTATION, seed, epoch).random((samples, draws), dtype=np.float32)

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._order)

    def __getitem__(self, places: slice) -> Ids:
        """Return the samples at some places."""
        return self._order[places]

    def draws(self, ids: Ids) -> Draws | None:
        """Return the numbers that augment samples."""
        return None if self._draws is None else self._draws[ids]


class Keyed:
    """Numbers that are a function of a key, and of the place or the sample."""

    def __init__(self, samples: int, *, seed: int, epoch: int, draws: int) -> None:
        """Draw the keys."""
        order, augmentation = (
            int(seeds.stream(purpose, seed, epoch).integers(2**63)) for purpose in (seeds.ORDER, seeds.AUGMENTATION)
        )
        self._order = Permutation(samples, key=order)
        self._key, self._count = augmentation, draws

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._order)

    def __getitem__(self, places: slice) -> Ids:
        """Return the samples at some places."""
        begin, end, _ = places.indices(len(self._order))
        ids: Ids = self._order.between(begin, end).numpy()
        return ids

    def draws(self, ids: Ids) -> Draws | None:
        """Return the numbers that augment samples."""
        if not self._count:
            return None
        numbers = torch.from_numpy(ids)[:, None] * self._count + torch.arange(self._count)
        found: Draws = (hashed(numbers, self._key) >> 8).float().mul_(2.0**-24).numpy()  # 24 bits fill a float32
        return found

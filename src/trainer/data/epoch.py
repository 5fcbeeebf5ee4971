"""An epoch of the trainer: the order of its samples, and the random numbers that augment each of them."""

from __future__ import annotations

import torch
from torch import Tensor

from slipway.rng.permutation import BLOCK, MAX_TABLE, Permutation, hash32
from slipway.rng.seeding import Purpose, derive
from trainer.data.base import Draws, Ids


class Epoch:
    """One epoch of a data set; it depends on the seed and the epoch's number only."""

    def __init__(self, samples: int, *, seed: int, epoch: int, draws: int = 0) -> None:
        """Select epoch ``epoch`` of ``samples`` samples, each of which needs ``draws`` random numbers."""
        self._order = Permutation(samples, key=derive(seed, Purpose.ORDER, epoch))
        self._key, self._count = derive(seed, Purpose.AUGMENTATION, epoch), draws
        self._table: Tensor | None = None
        if draws and samples <= MAX_TABLE:  # a batch's numbers are found faster than computed
            self._table = torch.cat([self._draw(ids) for ids in torch.arange(samples).split(BLOCK)])

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._order)

    def __getitem__(self, places: slice) -> Ids:
        """Return the samples at some positions: int64 [n]."""
        begin, end, _ = places.indices(len(self._order))
        ids: Ids = self._order.between(begin, end).numpy()
        return ids

    def draws(self, ids: Ids) -> Draws | None:
        """Return the numbers that augment samples: float32 [len(ids), draws] in [0, 1); None without augmentation."""
        if not self._count:
            return None
        found = torch.from_numpy(ids)
        numbers: Draws = (self._draw(found) if self._table is None else self._table[found]).numpy()
        return numbers

    def _draw(self, ids: Tensor) -> Tensor:
        numbers = ids[:, None] * self._count + torch.arange(self._count)
        return (hash32(numbers, self._key) >> 8).float().mul_(2.0**-24)  # 24 bits fill a float32

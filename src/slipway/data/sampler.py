"""Which samples each rank takes: one order for all world sizes, and each sample exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch.utils.data import Sampler as TorchSampler

from slipway.dist.existing_group import count_ranks
from slipway.rng.permutation import LARGE, Permutation

T = TypeVar("T")


class Sampler(TorchSampler[int]):
    """A sampler for ``Session.batches``, with which a run may be resumed on another number of ranks in mid-epoch.

    ``DataLoader(dataset, batch_size=32, sampler=slipway.Sampler(dataset))`` gives each rank 32 samples a step. The last
    batch of an epoch is divided among the ranks, as evenly as possible; nothing is repeated or left out, unless fewer
    samples are left than there are ranks. Iterated by itself, it gives the whole order, as a world of one rank has it.
    From 2^20 samples on, the order is computed part by part, in time and memory that do not depend on their number;
    torch's samplers draw all of it at the start of an epoch.
    """

    def __init__(self, dataset: Sized, *, shuffle: bool = True) -> None:
        """Sample from a data set.

        Args:
            dataset: of which the length counts; asked once.
            shuffle: whether each epoch has a random order of its own; otherwise the data set's.
        """
        self.samples = len(dataset)
        self._shuffle = shuffle
        self.generator: torch.Generator = torch.Generator()
        """Draws the order; seeded by the session before each epoch."""

    def __iter__(self) -> Iterator[int]:
        """Yield every index, in the order of the epoch."""
        return iter(self.order())

    def __len__(self) -> int:
        """Return the samples of a rank, by which ``len(loader)`` is the number of its batches."""
        return max(1, self.samples // count_ranks())

    def order(self) -> Sequence[int]:
        """Return a permutation of all indices from 0 to ``len(dataset) - 1``, drawn from ``generator``."""
        if not self._shuffle:
            return range(self.samples)
        if self.samples <= LARGE:
            return torch.randperm(self.samples, generator=self.generator).tolist()
        return Permutation(self.samples, key=int(torch.randint(1 << 62, (), generator=self.generator)))


@dataclass(frozen=True)
class GlobalBatches:
    """How the samples of an epoch are divided into batches over all ranks."""

    count: int
    size: int
    """Of all but the last one."""
    samples: int
    """Of all of them."""

    def end(self, number: int) -> int:
        """Return how many samples are in the first ``number`` batches."""
        return self.samples if number >= self.count else number * self.size


def global_batches(samples: int, *, batch_size: int, ranks: int, drop_last: bool) -> GlobalBatches:
    """Return how ``samples`` are divided into batches that hold ``batch_size`` for each rank, but for the last one.

    A rest that is smaller than the number of ranks joins the batch before it, since a rank without a sample would be
    missed in the all-reduce of the gradients.
    """
    size = batch_size * ranks
    full, rest = divmod(samples, size)
    if drop_last or not rest:
        return GlobalBatches(full, size, full * size)
    return GlobalBatches(full + (rest >= ranks or not full), size, samples)


def share(batch: Sequence[T], rank: int, ranks: int) -> Sequence[T]:
    """Return the part of ``rank``, contiguous; the first ranks have one more if need be.

    Where there are more ranks than samples, those that would have none repeat the first one.
    """
    least, longer = divmod(len(batch), ranks)
    begin = rank * least + min(rank, longer)
    return batch[begin : begin + least + (rank < longer)] or batch[:1]

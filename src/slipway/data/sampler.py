"""Distributed sampler: one order of samples for all world sizes, and each sample exactly once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import Sampler as TorchSampler

from slipway.base.errors import StateMismatchError
from slipway.dist.existing_group import count_ranks
from slipway.rng.permutation import ORDER_VERSION, Permutation


class Sliceable(Protocol):
    """Interface of numbered samples: a sequence, an array or a tensor."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, places: slice, /) -> Any:
        """Return the samples at some positions, of the same type."""
        ...


Samples = TypeVar("Samples", bound=Sliceable)


class Sampler(TorchSampler[int]):
    """Sampler for ``Session.batches`` that lets a run resume in mid-epoch on another number of ranks.

    ``DataLoader(dataset, batch_size=32, sampler=slipway.Sampler(dataset))`` gives each rank 32 samples per step. The
    last batch of an epoch is divided among the ranks as evenly as possible. No sample is repeated or omitted, unless
    fewer samples remain than there are ranks. Iterating over the sampler itself yields the whole order, as in a world
    of one rank. For more than 2^20 samples the order is computed incrementally, in time and memory that do not depend
    on the number of samples; torch's samplers draw the whole order at the start of an epoch.
    """

    def __init__(self, dataset: Sized, *, shuffle: bool = True, mesh: Any = None) -> None:
        """Sample from a data set.

        Args:
            dataset: the data set; only its length is used, and read once.
            shuffle: whether each epoch has a new random order; otherwise the data set's order is used.
            mesh: with tensor parallelism, the ``DeviceMesh`` that divides the samples, such as ``mesh["dp"]``: the mesh
                that ``fully_shard`` gets. Ranks with the same coordinate in it get the same samples. Default: all
                ranks.
        """
        self.samples = len(dataset)
        self._shuffle, self._mesh = shuffle, mesh
        self.generator: torch.Generator = torch.Generator()
        """Generator of the order; the session seeds it before each epoch."""

    def __iter__(self) -> Iterator[int]:
        """Yield all indices in the epoch's order."""
        return iter(self.order())

    @property
    def ranks(self) -> int:
        """The number of ranks among which the samples are divided."""
        return count_ranks() if self._mesh is None else self._mesh.size()

    def __len__(self) -> int:
        """Return the number of samples per rank, from which ``len(loader)`` derives the number of batches."""
        return max(1, self.samples // self.ranks)

    def order(self) -> Sequence[int]:
        """Return a permutation of all indices from 0 to ``len(dataset) - 1``, drawn from ``generator``."""
        if not self._shuffle:
            return range(self.samples)
        return Permutation(self.samples, key=int(torch.randint(1 << 62, (), generator=self.generator)))


@dataclass(frozen=True)
class GlobalBatches:
    """Division of an epoch's samples into batches over all ranks."""

    count: int
    """Number of batches."""
    size: int
    """Samples in each batch except the last one."""
    samples: int
    """Samples in all batches."""

    def end(self, number: int) -> int:
        """Return the number of samples in the first ``number`` batches."""
        return self.samples if number >= self.count else number * self.size


def global_batches(samples: int, *, batch_size: int, ranks: int, drop_last: bool) -> GlobalBatches:
    """Return the division of ``samples`` into batches of ``batch_size`` per rank; the last batch may differ in size.

    A remainder smaller than the number of ranks joins the batch before it, because a rank without a sample would be
    missing in the all-reduce of the gradients.
    """
    size = batch_size * ranks
    full, rest = divmod(samples, size)
    if drop_last or not rest:
        return GlobalBatches(full, size, full * size)
    return GlobalBatches(full + (rest >= ranks or not full), size, samples)


def share(samples: Samples, rank: int, ranks: int) -> Samples:
    """Return the contiguous share of ``rank`` in ``samples``; the first ranks get one sample more if necessary."""
    least, longer = divmod(len(samples), ranks)
    begin = rank * least + min(rank, longer)
    found: Samples = samples[begin : begin + least + (rank < longer)]
    return found


def require_order_version(version: object) -> None:
    """Raise a StateMismatchError if ``version``, from a checkpoint, is not the version of this slipway's orders."""
    if version != ORDER_VERSION:
        raise StateMismatchError(
            "order-version",
            f"cannot resume: the checkpoint's samples are in order version {version}, and this slipway draws version "
            f"{ORDER_VERSION}. Use the version of slipway that wrote the checkpoint.",
        )

"""Which samples of an epoch make up which optimiser step on which rank: a function of their order alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np

from trainer.data.base import Ids


class MicroBatch(NamedTuple):
    """One forward and backward pass of one rank.

    ``counted`` is False where the rank has no sample in this step: it then computes on another rank's first one, twice
    and without weight, because every rank must join the reduction.
    """

    ids: Ids
    counted: bool
    step_samples: int
    """Samples of the whole optimiser step, over all ranks and micro-batches."""
    number: int = 0
    """Among the micro-batches of this rank and step."""
    total: int = 1
    """How many those are."""

    @property
    def last(self) -> bool:
        """Whether the optimiser step follows."""
        return self.number == self.total - 1


class Order(Protocol):
    """The samples of an epoch, in the order in which it visits them; an array, or what is computed by parts."""

    def __len__(self) -> int:
        """Return how many samples there are."""
        ...

    def __getitem__(self, places: slice) -> Ids:
        """Return those at some places: int64 [n]."""
        ...


def rank_steps(
    order: Order, *, start: int, steps: int | None = None, batch_size: int, rank: int, size: int, micro_steps: int
) -> Iterator[MicroBatch]:
    """Yield this rank's micro-batches of ``steps`` optimiser steps, or all, from sample ``start`` of ``order`` on.

    Step k takes ``batch_size`` samples whatever the world's ``size``; each rank has a contiguous share of them, the
    earlier ranks one more where it does not divide.
    """
    end = len(order) if steps is None else min(len(order), start + steps * batch_size)
    for begin in range(start, end, batch_size):
        batch = order[begin : min(begin + batch_size, end)]
        share = part(batch, rank, size)
        counted = len(share) > 0
        pieces = min(micro_steps, len(share)) if counted else 1
        for index in range(pieces):
            ids = part(share, index, pieces) if counted else batch[[0, 0]]  # batch norm needs two
            yield MicroBatch(ids, counted, len(batch), index, pieces)


def largest_micro_batch(batch_size: int, *, size: int, micro_steps: int) -> int:
    """Return the samples of the largest micro-batch that ``rank_steps`` yields on any rank."""
    share = -(-batch_size // size)
    return -(-share // min(micro_steps, share))


def rank_share(samples: int, *, rank: int, size: int) -> Ids:
    """Return the ids that ``rank`` evaluates: each of ``range(samples)`` is one rank's, whatever the world's size."""
    return part(np.arange(samples), rank, size)


def part(ids: Ids, index: int, parts: int) -> Ids:
    """Return part ``index`` of ``ids`` cut into contiguous ``parts``, the first of which are one longer if need be."""
    least, longer = divmod(len(ids), parts)
    begin = index * least + min(index, longer)
    return ids[begin : begin + least + (index < longer)]

"""Division of an epoch's samples into optimizer steps, ranks and micro-batches; it depends on their order only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from slipway.data.sampler import share
from trainer.data.base import Ids
from trainer.data.epoch import Epoch


class MicroBatch(NamedTuple):
    """One forward and backward pass of one rank.

    ``counted`` is False if the rank has no sample in this step. It then computes on two copies of the batch's first
    sample, with weight 0, because each rank must take part in the reduction.
    """

    ids: Ids
    counted: bool
    step_samples: int
    """Number of samples in the whole optimizer step, over all ranks and micro-batches."""
    number: int = 0
    """Index among the micro-batches of this rank and step."""
    total: int = 1
    """Number of micro-batches of this rank and step."""

    @property
    def last(self) -> bool:
        """Whether this is the last micro-batch before the optimizer step."""
        return self.number == self.total - 1


def rank_steps(
    order: Epoch | Ids, *, start: int, steps: int | None = None, batch_size: int, rank: int, size: int, micro_steps: int
) -> Iterator[MicroBatch]:
    """Yield this rank's micro-batches of ``steps`` optimizer steps, or of all, from sample ``start`` of ``order`` on.

    A step takes ``batch_size`` samples for any world ``size``. Each rank has a contiguous share of them. If they do not
    divide evenly, the first ranks have one more.
    """
    end = len(order) if steps is None else min(len(order), start + steps * batch_size)
    for begin in range(start, end, batch_size):
        batch = order[begin : min(begin + batch_size, end)]
        own = share(batch, rank, size)
        counted = len(own) > 0
        pieces = min(micro_steps, len(own)) if counted else 1
        for index in range(pieces):
            ids = share(own, index, pieces) if counted else batch[[0, 0]]  # batch norm needs two
            yield MicroBatch(ids, counted, len(batch), index, pieces)


def largest_micro_batch(batch_size: int, *, size: int, micro_steps: int) -> int:
    """Return the size of the largest micro-batch that ``rank_steps`` yields on any rank."""
    most = -(-batch_size // size)
    return -(-most // min(micro_steps, most))


def rank_share(samples: int, *, rank: int, size: int) -> Ids:
    """Return the ids that ``rank`` evaluates: exactly one rank has each of ``range(samples)``, for any world size."""
    return share(np.arange(samples), rank, size)

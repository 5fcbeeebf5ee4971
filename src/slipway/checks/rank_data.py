"""Checks of how the ranks share the data: a sampler divides one data set, which is the same on all ranks.

A script that splits or shuffles its data without a seed, or lists files in a node's order, has another data set on each
rank. The ranks then train on shares of different data sets: samples are repeated or left out, and the model may
train on validation samples. A script for one GPU has no sampler that divides the data: each rank then trains
on all samples.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler, SequentialSampler

from slipway.base.errors import SessionError, warn
from slipway.data.dataset_digest import Data
from slipway.data.sampler import Sampler

log = logging.getLogger(__name__)


class Share(IntEnum):
    """What a rank reads of a loader's data set in a pass."""

    UNKNOWN = 0
    PART = 1
    """The part that the sampler gives it: all ranks together read the set once."""
    WHOLE = 2
    """All of it."""


class RankData:
    """Compares the data of a pass between the ranks, by numbers that their votes add up."""

    def __init__(self, data: Data, ranks: int, *, step: int) -> None:
        """Compare the digests of ``data`` over so many ranks, in a run that continues at ``step``."""
        self._data, self._ranks, self._step = data, ranks, step
        self._share, self._split, self._samples = Share.UNKNOWN, 0, 0
        self._compared: set[int] = set()
        self._warned: set[str] = set()

    def begin_pass(self, number: int, loader: Any, *, size: int | None) -> None:
        """Digest the data of the first pass of this number.

        Args:
            number: the pass's number in its epoch.
            loader: the pass's loader; None for a pass that resumes, whose data are compared with those at the save.
            size: samples in the loader's data set; None if unknown.
        """
        self._share, self._split, self._samples = Share.UNKNOWN, 0, 0
        if self._ranks > 1 and number not in self._compared and (share := _share(loader, self._ranks)):
            self._compared.add(number)
            indices, samples = self._data.of_dataset(loader.dataset)
            self._share, self._split, self._samples = share, _number(f"{size} {indices}"), _number(samples)

    def counters(self) -> list[float]:
        """Return this rank's numbers and their squares, for ``check``."""
        return [float(number**power) for number in (self._share, self._split, self._samples) for power in (1, 2)]

    def check(self, sums: Sequence[float], *, step: int) -> None:
        """Check the sums over all ranks of ``counters``; ``step`` is the run's current step.

        Raises:
            SessionError: on every rank, if a sampler divides data sets that differ in length or in the indices of a
                Subset.
        """
        has_stepped, self._step = step > self._step, step
        if self._share is Share.UNKNOWN or self._differ(*sums[:2]):
            return
        is_other_split, has_other_samples = self._differ(*sums[2:4]), self._differ(*sums[4:])
        if self._share is Share.WHOLE:
            if has_stepped and not is_other_split and not has_other_samples and self._is_first("undivided-data"):
                warn(
                    log,
                    "undivided-data",
                    "each rank trains on the whole data set, as the loader's sampler does not divide it: use "
                    "sampler=slipway.Sampler(dataset) in place of shuffle=True",
                )
            return
        if is_other_split:
            error = SessionError(
                "different-data",
                "the ranks have different data sets, though the loader's sampler divides one among them. Seed the "
                "split of the data: random_split(data, lengths, generator=torch.Generator().manual_seed(0)).",
            )
            error.raised_on_all_ranks = True
            raise error
        if has_other_samples and self._is_first("different-data"):
            warn(
                log,
                "different-data",
                "a loader has other samples on each rank, or the same in another order, though its sampler divides "
                "them among the ranks: seed the code that creates, shuffles or splits the data",
            )

    def _is_first(self, slug: str) -> bool:
        """Return whether no warning ``slug`` was logged yet, and record it as logged."""
        is_first = slug not in self._warned
        self._warned.add(slug)
        return is_first

    def _differ(self, total: float, squares: float) -> bool:
        return int(squares) * self._ranks != int(total) ** 2


def _share(loader: Any, ranks: int) -> Share:
    """Return what each of so many ranks reads of the loader's data set, judged by its sampler."""
    if not isinstance(loader, DataLoader):
        return Share.UNKNOWN
    batch_sampler = loader.batch_sampler
    sampler = getattr(batch_sampler, "sampler", None) if batch_sampler is not None else loader.sampler
    if isinstance(sampler, Sampler) or (isinstance(sampler, DistributedSampler) and sampler.num_replicas == ranks):
        return Share.PART
    if isinstance(sampler, DistributedSampler) and sampler.num_replicas == 1 and len(sampler) == len(sampler.dataset):  # type: ignore[arg-type]
        return Share.WHOLE
    if type(batch_sampler) not in {BatchSampler, type(None)}:
        return Share.UNKNOWN
    if type(sampler) is RandomSampler:
        draws_each_once = not sampler.replacement and sampler.num_samples == len(sampler.data_source)
        return Share.WHOLE if draws_each_once else Share.UNKNOWN
    return Share.WHOLE if type(sampler) is SequentialSampler else Share.UNKNOWN


def _number(digest: str) -> int:
    """Return 20 bits of a hash: float64 adds up the squares of up to 8,192 ranks exactly."""
    return int(hashlib.sha256(digest.encode()).hexdigest()[:5], 16)

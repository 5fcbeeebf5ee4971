"""A rank's position in the data of an epoch, and its remaining batches."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DistributedSampler

from slipway.base.environment import World
from slipway.base.errors import SessionError, StateMismatchError, warn
from slipway.data.dataset_digest import Data
from slipway.data.loader_settings import LoaderSettings
from slipway.data.loading import Origin, Pass, RereadingSource, Seeds, SkippingSource, can_skip
from slipway.data.sampler import require_order_version
from slipway.data.workers import has_running_workers
from slipway.dist.existing_group import count_ranks
from slipway.rng.permutation import ORDER_VERSION
from slipway.rng.seeding import Purpose, derive

log = logging.getLogger(__name__)


class RankPosition(NamedTuple):
    """A rank's position in the data of an epoch; a checkpoint holds those of all ranks, as JSON lists."""

    number: int = 0
    """Number of the pass in its epoch, from 0."""
    batch: int = 0
    """Batches of this pass that are done."""
    total: int | None = None
    """Batches in this pass; None if unknown."""
    step: int = 0
    """Optimizer steps that the rank has done."""
    size: int | None = None
    """Samples in the pass's data set; None if unknown."""
    ended: Sequence[int] = ()
    """Number of batches of each earlier pass of the epoch."""
    data: dict[str, Any] = {}  # noqa: RUF012 -- a default that nothing changes
    """Digests of the data that the rank's passes read (``Data.facts``)."""

    @property
    def in_epoch(self) -> tuple[int, int]:
        """Pass number and batches done; (0, 0) at the beginning of an epoch."""
        return self.number, self.batch


class Feed:
    """The passes over loaders in an epoch: usually one, but the loop body may have several in sequence."""

    def __init__(self, world: World, *, seed: int, repeat_epoch: bool) -> None:
        """Feed the rank of ``world``; see Session for the other arguments."""
        self._world = world
        self._seed = seed
        self._repeat_epoch = repeat_epoch
        self._sources: dict[int, tuple[object, SkippingSource | RereadingSource]] = {}
        self._source: SkippingSource | RereadingSource | None = None
        self._settings = LoaderSettings()
        self.data = Data()
        """Digests of the data that this rank's passes read."""
        self._origin = Origin()
        self._order_version = ORDER_VERSION
        """Version of the orders of slipway.Sampler when the run was saved."""
        self._saved: dict[str, Any] | None = None
        self._saved_position = RankPosition()
        self._warned: set[int] = set()
        self._used: set[int] = set()
        self.is_counting = False
        """Whether the current or last pass consists of the iterations of ``steps``."""
        self._iterations = 0
        """Iterations of ``steps`` up to the previous pass."""
        self.ended: list[int] = []
        """Number of batches of each pass of this epoch that has ended."""
        self.number = 0
        """Number of the current or next pass in its epoch."""
        self.batch = 0
        """Batches of this pass done."""
        self.total: int | None = None
        """Batches in this pass; None if unknown."""
        self.size: int | None = None
        """Samples in this pass's data set, which may differ between ranks; None if unknown."""

    def resume(self, facts: dict[str, Any], step: int) -> int:
        """Resume the epoch at the position in a checkpoint's ``facts``; return the steps that this rank has done.

        Args:
            facts: as the method ``facts`` returned them.
            step: the largest step of any rank.
        """
        self._order_version = facts["order"]
        self._iterations = facts.get("iterations", 0)
        self._settings.resume(facts.get("changed", {}))
        positions = [RankPosition(*each) for each in facts["places"]]
        same_ranks = len(positions) == self._world.size
        self._saved_position = positions[self._world.rank if same_ranks else 0]
        self.data.resume(self._saved_position.data)
        if any(position.in_epoch != (0, 0) for position in positions):
            self._saved = {**facts, "places": positions}
        return self._saved_position.step if same_ranks else step

    @property
    def is_resuming(self) -> bool:
        """Whether the pass in which the run was saved has yet to resume."""
        return self._saved is not None

    @property
    def resumed_pass(self) -> int | None:
        """The number of the pass in which the run was saved; None between two epochs."""
        return self._saved_position.number if self._saved else None

    @property
    def done(self) -> int:
        """Batches done of the current or next pass; in a resumed epoch this is known before the pass begins."""
        if self._saved is None:
            return self.batch
        saved = self._saved_position
        if self.number == saved.number:
            return saved.batch
        return saved.ended[self.number] if self.number < len(saved.ended) else 0

    def position(self, step: int) -> RankPosition:
        """Return this rank's position after ``step`` optimizer steps."""
        return RankPosition(self.number, self.batch, self.total, step, self.size, [*self.ended], self.data.facts())

    def facts(self, positions: list[RankPosition]) -> dict[str, Any]:
        """Return the facts for a checkpoint, as ``resume`` takes them; ``positions`` are those of all ranks."""
        samples = 0
        if self._skipping and self._skipping.sampler:
            samples = self._skipping.consumed(self.batch, self._origin, self._world)
        return {
            "places": positions,
            "origin": list(self._origin),
            "samples": samples,
            "order": ORDER_VERSION,
            "iterations": self.batch if self.is_counting else self._iterations,
            "changed": self._settings.changed(
                self.number if self._source else None, is_reread=isinstance(self._source, RereadingSource)
            ),
        }

    def next_epoch(self) -> None:
        """Reset the counts for the next epoch, and close loaders that the last epoch did not use."""
        self.number = -1
        self.next_pass()
        self.ended = []
        for key in self._sources.keys() - self._used:
            self._sources.pop(key)[1].close()
        self._used = set()

    def next_pass(self) -> None:
        """End the current pass and reset the counts for the next one."""
        self.ended.append(self.done)
        self.number += 1
        if self.is_counting:
            self._iterations, self.is_counting = self.batch, False
        if self._saved and self._saved_position.in_epoch <= (self.number, 0):
            self._saved = None
        self.batch, self.total, self.size, self._source, self._origin = 0, None, None, None, Origin()

    def begin_steps(self, total: int) -> Pass:
        """Begin or continue the iterations of ``steps``, up to ``total`` over the whole run.

        Consecutive calls of ``steps`` are one pass. The call in which the run was saved is the first whose ``total``
        reaches the saved position.
        """
        if not self.is_counting:
            self.is_counting, self.batch = True, self._iterations
        if self._saved:
            if (self.number, total) < self._saved_position.in_epoch:
                return Pass(iter(()), None)
            self._saved, self.batch = None, self._saved_position.batch
        self.total = max(self.batch, total)
        return Pass(iter(range(self.batch, total)), self.total)

    def end_steps(self) -> None:
        """End a pass of ``steps``, if there is one, before another kind of loop begins."""
        if self.is_counting:
            self.next_pass()

    def begin(self, loader: Iterable[Any], *, epoch: int, device: torch.device | None = None) -> Pass:
        """Begin a pass over ``loader``, after the batches that are done; move its batches to ``device`` if given.

        Raises:
            StateMismatchError: if the loader or its data differ from the save, if another version of slipway drew its
                order, or if the number of ranks has changed and this loader cannot continue with another one.
        """
        if id(loader) not in self._warned and has_running_workers(loader):
            warn(
                log,
                "early-workers",
                "a loader's workers were started before the session: a signal to all processes would end them",
            )
        self._warned.add(id(loader))
        self._used.add(id(loader))
        _set_epoch(loader, epoch)
        self._source = self._source_of(loader)
        if self._skipping and (sampler := self._skipping.sampler):
            require_order_version(self._order_version)
            if sampler.ranks != self._world.size:
                raise SessionError(
                    "sampler-mesh",
                    f"slipway.Sampler divides the samples among {sampler.ranks} ranks, but the model's data-parallel "
                    f"mesh has {self._world.size}.",
                )
        self._require_samples_of_mesh(loader)
        if self._saved and self.number < self._saved_position.number and self._require_same_ranks(self._saved, epoch):
            return Pass(iter(()), None)  # this pass had ended before the save
        saved, self._saved = self._saved, None
        self.size = _samples(loader) if self._skipping else None
        same_ranks = saved is not None and len(saved["places"]) == self._world.size
        size = self._saved_position.size if same_ranks else None
        if size not in {None, self.size}:
            raise StateMismatchError(
                "different-data",
                f"the data set has {self.size} samples, but had {size} when the run was saved in mid-epoch: use the "
                "same data.",
            )
        self.data.begin(self.number, loader, within=same_ranks and self._saved_position.batch > 0)
        self.batch, self._origin = self._resume_at(saved, epoch) if saved else (0, Origin())
        if not self._skipping:
            self._compare_settings(loader, within=bool(saved))
        found = self._start(epoch, device)
        if self._skipping:  # the settings after the sampler has drawn
            self._compare_settings(loader, within=bool(saved))
        expected = self._saved_position.total if saved and self._origin == Origin(*saved["origin"]) else None
        if expected not in {None, found.total}:
            raise StateMismatchError(
                "different-data",
                f"the loader has {found.total} batches, but had {expected} when the run was saved: use the same data, "
                "batch size and sampler.",
            )
        self.total = found.total
        return found

    def close(self) -> None:
        """Release the loaders' copies, and end their workers."""
        for _, source in self._sources.values():
            source.close()
        self._sources.clear()
        self._source = None

    def _compare_settings(self, loader: object, *, within: bool) -> None:
        if self._world.is_root:  # rank 0 saves its settings
            self._settings.begin(self.number, loader, within=within)

    def _start(self, epoch: int, device: torch.device | None) -> Pass:
        rank = self._world.rank
        seeds = Seeds(
            derive(self._seed, Purpose.ORDER, epoch, self.number),
            derive(self._seed, Purpose.FETCH, epoch, self.number, rank),
            derive(self._seed, Purpose.WORKER, rank),
        )
        assert self._source
        if isinstance(self._source, SkippingSource):
            return self._source.start(
                skip=self.batch, origin=self._origin, world=self._world, seeds=seeds, device=device
            )
        if self.batch and not self._source.holds_batches:
            warn(
                log,
                "slow-resume",
                "this loader cannot skip by index: its first %d batches are fetched again and discarded",
                self.batch,
            )
        return self._source.start(skip=self.batch, world=self._world, seeds=seeds, device=device)

    def _resume_at(self, saved: dict[str, Any], epoch: int) -> tuple[int, Origin]:
        """Return the number of batches that this rank has processed, and the origin from which they are counted."""
        done = self._saved_position.batch
        if self._skipping and self._skipping.sampler and len(saved["places"]) != self._world.size:
            return done, Origin(saved["samples"], done)
        if not self._require_same_ranks(saved, epoch):
            return 0, Origin()
        return done, Origin(*saved["origin"])

    def _require_same_ranks(self, saved: dict[str, Any], epoch: int) -> bool:
        """Return whether the epoch can continue; False if it begins again, as ``repeat_epoch`` requests.

        Raises:
            StateMismatchError: if the number of ranks has changed and ``repeat_epoch`` is false.
        """
        positions: list[RankPosition] = saved["places"]
        between_passes = all(position.in_epoch == (positions[0].number, 0) for position in positions)
        if len(positions) == self._world.size or between_passes:
            return True
        if not self._repeat_epoch:
            raise StateMismatchError(
                "different-ranks",
                f"the run was saved by {len(positions)} rank(s) in mid-epoch, but now has {self._world.size}: only "
                "slipway.Sampler can redistribute the rest of an epoch. Session(repeat_epoch=True) repeats the epoch.",
            )
        warn(log, "epoch-repeated", "epoch %d begins again, because the number of ranks has changed", epoch + 1)
        self._saved_position = RankPosition()
        return False

    def _require_samples_of_mesh(self, loader: Any) -> None:
        """Raise a SessionError if a DistributedSampler gives ranks of one tensor-parallel group different samples."""
        sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
        if isinstance(sampler, DistributedSampler) and count_ranks() != self._world.size:
            given, own = (sampler.rank, sampler.num_replicas), (self._world.rank, self._world.size)
            if given != own:
                raise SessionError(
                    "sampler-mesh",
                    f"DistributedSampler has rank {given[0]} of {given[1]}, but this rank's place in the model's "
                    f"data-parallel mesh is {own[0]} of {own[1]}: use slipway.Sampler(dataset, mesh=mesh).",
                )

    def _source_of(self, loader: Any) -> SkippingSource | RereadingSource:
        """Return the cached iteration wrapper of ``loader``, which may keep its workers between epochs."""
        if id(loader) not in self._sources:
            self._sources[id(loader)] = loader, (SkippingSource if can_skip(loader) else RereadingSource)(loader)
        return self._sources[id(loader)][1]

    @property
    def _skipping(self) -> SkippingSource | None:
        return self._source if isinstance(self._source, SkippingSource) else None


def _set_epoch(loader: Any, epoch: int) -> None:
    """Call ``set_epoch`` of the loader's sampler, if it has one: some samplers draw their order by the epoch."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    for sampler in (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)):
        if set_epoch := getattr(sampler, "set_epoch", None):
            set_epoch(epoch)
            return


def _samples(loader: Any) -> int | None:
    """Return the number of samples in the loader's data set; None if it has no length."""
    try:
        return len(loader.dataset)
    except TypeError:
        return None

"""Iteration over a DataLoader from any batch of any epoch, with batches that are the same in each attempt.

A copy of the DataLoader with a replaced sampler is iterated. The order of an epoch is drawn at once, with a separate
seed, and a worker seeds the global generators before it fetches each batch. Therefore a resumed run can skip batches by
index, and fetches the other batches with the same random numbers as an uninterrupted run. Without workers, fetching
uses the rank's own generators, which are saved in checkpoints.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset

from slipway.base.environment import World
from slipway.base.errors import SessionError
from slipway.data.device_batches import on_device
from slipway.data.loader_settings import describe
from slipway.data.order import Order
from slipway.data.sampler import GlobalBatches, Sampler, global_batches, share
from slipway.data.workers import end_workers
from slipway.rng.continuing_generators import seeded_loaders
from slipway.rng.loader_generators import LoaderGenerators, find_generators, reseed_all, seed_worker
from slipway.rng.seeding import Purpose, derive, seed_generators


class Request(NamedTuple):
    """A request for a batch, or for a sample if the loader does not batch; it seeds the worker that receives it.

    In the worker it unpickles to the plain index, so that the data set, ``collate_fn`` and everything else there are
    the user's unmodified objects.
    """

    seed: int
    index: Any
    """A batch's sample indices, or the sampler's value if the loader does not batch."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call of ``receive``."""
        return receive, (self.seed, self.index)


def receive(seed: int, index: Any) -> Any:
    """Seed this worker's generators for the next fetch, and return ``index``."""
    seed_worker(seed)
    return index


class Requests:
    """Replacement for a loader's sampler, which yields the current pass's requests."""

    def __init__(self) -> None:
        """Start without requests."""
        self.now: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the current pass's requests."""
        return iter(self.now)


class Origin(NamedTuple):
    """Position from which an epoch's batches are counted: its beginning, or where the number of ranks changed."""

    samples: int = 0
    """Samples of the epoch consumed before this position, over all ranks."""
    batches: int = 0
    """Batches of the epoch done before this position."""


class Seeds(NamedTuple):
    """Seeds of a pass."""

    order: int
    """Seed of the order of samples, the same on all ranks."""
    fetch: int
    """Seed for fetching samples, different on each rank."""
    start: int
    """Seed for the start of persistent workers, the same for all passes of a rank."""


class Pass(NamedTuple):
    """A pass over the data."""

    batches: Iterator[Any]
    total: int | None
    """Number of batches in the whole pass, including skipped ones; None if unknown."""
    reseeds: bool = False
    """Whether fetching a batch seeds this process's generators, so that the loop body must be seeded too."""


ITERATION = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation", "sampler", "batch_sampler")
"""Attributes that determine how a DataLoader is iterated; a subclass that overrides one of them cannot be replayed."""


def can_skip(loader: object) -> bool:
    """Return whether batches of ``loader`` can be requested by index: it iterates as torch's DataLoader does."""
    return (
        isinstance(loader, DataLoader)
        and all(getattr(type(loader), name, None) is getattr(DataLoader, name, None) for name in ITERATION)
        and not {"__iter__", "_get_iterator"} & vars(loader).keys()
        and not isinstance(loader.dataset, IterableDataset)
    )


class SkippingSource:
    """Passes over a DataLoader that can begin at any batch, through a copy with another sampler."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Iterate over ``loader``; workers start with the first pass, and persist if the loader's would."""
        inner = getattr(loader.batch_sampler, "sampler", None)
        if isinstance(loader.sampler, Sampler) != isinstance(inner, Sampler):
            raise SessionError(
                "sampler-batch-size", "pass slipway.Sampler to the DataLoader as sampler, together with a batch_size."
            )
        self._original = loader
        self._order = Order(loader)
        self._requests = Requests()
        self._copy: DataLoader[Any] | None = None
        self._settings: dict[str, Any] = {}
        self._described: dict[str, str] = {}
        self._iterator: Iterator[Any] | None = None

    @property
    def sampler(self) -> Sampler | None:
        """The loader's sampler, if it is slipway's own."""
        return self._original.sampler if isinstance(self._original.sampler, Sampler) else None

    def consumed(self, done: int, origin: Origin, world: World) -> int:
        """Return the samples of the epoch that all ranks have consumed after ``done`` batches; slipway.Sampler only."""
        return origin.samples + self._division(origin, world).end(done - origin.batches)

    def start(
        self, *, skip: int, origin: Origin, world: World, seeds: Seeds, device: torch.device | None = None
    ) -> Pass:
        """Begin a pass after ``skip`` batches.

        Args:
            skip: number of batches that this rank has done.
            origin: for slipway.Sampler, the position from which its batches are counted.
            world: this rank's world.
            seeds: this pass's seeds.
            device: where to move the batches, if not None: with workers, each during the step before.
        """
        loader = self._copied(seeds)
        done = skip
        if loader.num_workers:  # so that the same worker fetches each batch, which may depend on the worker
            skip -= (skip - origin.batches) % loader.num_workers
        if self.sampler:
            self._order.seed(seeds.order, world)
            division = self._division(origin, world)
            total: int | None = division.count + origin.batches
            indices: Iterator[Any] = self._iterate_shares(self.sampler.order(), division, origin, world, skip=skip)
        else:
            indices, total = self._order.draw(seeds.order, world)
            indices = itertools.islice(indices, skip, None)
        own = find_generators(loader.dataset, loader.collate_fn)
        if loader.num_workers:
            indices = (Request(derive(seeds.fetch, number), index) for number, index in enumerate(indices, skip))
        elif own:
            indices = _seeded_each(own, seeds.fetch, indices, skip)
        self._requests.now = indices
        self._iterator = iter(loader)
        batches: Iterator[Any] = itertools.islice(self._iterator, done - skip, None)
        if device is not None:  # without workers, fetching draws random numbers in this process, in its place
            batches = on_device(batches, device, ahead=loader.num_workers > 0)
        if own or self._order.generators:  # the loop body may draw from them, too
            everything = [*self._order.generators, *own]
            batches = _seeded_each(everything, derive(seeds.fetch, Purpose.BODY), batches, done)
        return Pass(batches, total)

    def close(self) -> None:
        """End the workers."""
        _shut_down(self._iterator)

    def _copied(self, seeds: Seeds) -> DataLoader[Any]:
        """Return a copy of the loader with the loader's current attributes.

        A copy with persistent workers is reused unless a loader attribute or a data set setting has changed, because
        workers that start in a later attempt would only see the new value.
        """
        loader = self._original
        settings = {name: value for name, value in vars(loader).items() if name != "_iterator"}
        described = describe(loader.dataset) if loader.persistent_workers else {}
        same = (
            described == self._described
            and settings.keys() == self._settings.keys()
            and all(value is self._settings[name] for name, value in settings.items())
        )
        if self._copy is None or not (loader.persistent_workers and same):
            self.close()
            self._settings, self._described, self._copy = settings, described, copy.copy(loader)
            requested = "sampler" if loader.batch_sampler is None else "batch_sampler"
            vars(self._copy).update({requested: self._requests, "_iterator": None, "generator": torch.Generator()})
            seeded_loaders.add(self._copy)
        # This seed determines get_worker_info().seed in workers: for persistent ones the same whenever they start.
        self._copy.generator.manual_seed(seeds.start if loader.persistent_workers else seeds.fetch)
        return self._copy

    def _iterate_shares(
        self, order: Sequence[int], division: GlobalBatches, origin: Origin, world: World, *, skip: int
    ) -> Iterator[Sequence[int]]:
        """Yield the rank's share of each batch after the first ``skip`` batches."""
        for number in range(skip - origin.batches, division.count):
            begin, end = (origin.samples + division.end(count) for count in (number, number + 1))
            batch = order[begin:end]
            yield list(share(batch, world.rank, world.size) or batch[:1])  # each rank must take part in the step

    def _division(self, origin: Origin, world: World) -> GlobalBatches:
        """Return how the samples after ``origin`` are divided into batches; slipway.Sampler only."""
        assert self.sampler
        assert self._original.batch_size
        left = self.sampler.samples - origin.samples
        return global_batches(
            left, batch_size=self._original.batch_size, ranks=world.size, drop_last=self._original.drop_last
        )


def _seeded_each(generators: Sequence[Any], seed: int, items: Iterator[Any], first: int) -> Iterator[Any]:
    """Yield ``items``; seed ``generators`` by the item's number, counted from ``first``, before yielding each."""
    for number, item in enumerate(items, first):
        reseed_all(generators, derive(seed, number))
        yield item


def _shut_down(iterator: Iterator[Any] | None) -> None:
    """End the workers of a DataLoader's iterator; at the exit of Python this would take five seconds per worker."""
    if shut_down := getattr(iterator, "_shutdown_workers", None):
        shut_down()


class RereadingSource:
    """Passes over other iterables, which begin at the first batch: completed batches are fetched again and discarded.

    For a list, a tuple or a range this costs nothing and draws no random numbers.
    """

    def __init__(self, iterable: Iterable[Any]) -> None:
        """Iterate over ``iterable``."""
        self._iterable = iterable
        self.holds_batches = type(iterable) in {list, tuple, range}
        """Whether the batches are in memory, so that fetching one again costs nothing."""
        self._own = LoaderGenerators(iterable)
        if isinstance(iterable, DataLoader):
            seeded_loaders.add(iterable)
        self._iterator: Iterator[Any] | None = None

    def start(self, *, skip: int, world: World, seeds: Seeds, device: torch.device | None = None) -> Pass:
        """Begin a pass after ``skip`` batches; see SkippingSource."""
        self._seed(seeds.order, world)
        try:
            total = len(self._iterable)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # IterableDataset, generators
            total = None
        self._iterator = iter(self._iterable)
        if self.holds_batches:
            rest = itertools.islice(self._iterator, skip, None)
            batches = self._seeded(rest, seeds.order, world, first=skip)
        else:
            batches = itertools.islice(self._seeded(self._iterator, seeds.order, world), skip, None)
        return Pass(batches if device is None else on_device(batches, device, ahead=False), total, reseeds=True)

    def close(self) -> None:
        """End the workers."""
        _shut_down(self._iterator)
        if isinstance(self._iterable, DataLoader):
            end_workers(self._iterable)

    def _seed(self, seed: int, world: World) -> None:
        seed_generators(seed)
        self._own.seed(seed, world)

    def _seeded(self, batches: Iterator[Any], seed: int, world: World, *, first: int = 0) -> Iterator[Any]:
        """Yield ``batches``; seed the generators by the batch's number, counted from ``first``, before each fetch."""
        for number in itertools.count(first):
            self._seed(derive(seed, number), world)
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

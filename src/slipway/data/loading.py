"""The batches of a DataLoader, from any batch of any epoch on: the same ones, whoever fetches them.

A DataLoader is iterated through a copy whose sampler is replaced. The order of an epoch is drawn at once, under a seed
of its own; a worker seeds the global generators before it fetches a batch. So a resumed run skips batches by their
index, and fetches the others with the random numbers that they always have. Without workers, the rank's own generators
serve, which a checkpoint holds.
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
from slipway.data.loader_settings import describe
from slipway.data.order import Order
from slipway.data.sampler import GlobalBatches, Sampler, global_batches, share
from slipway.data.workers import end_workers
from slipway.rng.continuing_generators import seeded_loaders
from slipway.rng.loader_generators import OwnGenerators, own_generators, reseed_all, seed_worker
from slipway.rng.seeding import Purpose, derive, seed_generators


class Request(NamedTuple):
    """A request for a batch, or for a sample if the loader makes no batches: it seeds the worker that receives it.

    Unpickled there it is the index alone, so that the data set, ``collate_fn`` and everything else in a worker are the
    user's own objects.
    """

    seed: int
    index: Any
    """Indices of samples for a batch, or what the sampler gave."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled as a call of ``receive``."""
        return receive, (self.seed, self.index)


def receive(seed: int, index: Any) -> Any:
    """Seed the generators of this worker process for what it fetches next, and return ``index``."""
    seed_worker(seed)
    return index


class Requests:
    """Takes the place of a sampler: the requests of the current pass, for which the loader asks on each pass."""

    def __init__(self) -> None:
        """Request nothing yet."""
        self.now: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        """Yield the requests of this pass."""
        return iter(self.now)


class Origin(NamedTuple):
    """Where the batches of an epoch are counted from: its beginning, or where the number of ranks changed."""

    samples: int = 0
    """Samples of the epoch consumed before, over all ranks."""
    batches: int = 0
    """Batches of it done before."""


class Seeds(NamedTuple):
    """Of a pass."""

    order: int
    """Of the order of its samples, the same on all ranks."""
    fetch: int
    """Of what is drawn while samples are fetched; another one on each rank."""
    start: int
    """Of workers that persist, where they start: the same one for all passes of a rank."""


class Pass(NamedTuple):
    """A pass over the data under way."""

    batches: Iterator[Any]
    total: int | None
    """Number of batches of the whole pass, with those that are skipped; None if nobody knows."""
    reseeds: bool = False
    """Whether to fetch a batch seeds the generators of this process, so that the body of the loop needs seeds too."""


ITERATION = ("__iter__", "_get_iterator", "_index_sampler", "_auto_collation", "sampler", "batch_sampler")
"""What decides how a DataLoader is iterated; a subclass that has one of these otherwise is left to itself."""


def can_replay(loader: object) -> bool:
    """Return whether batches of ``loader`` can be requested by their index: whether torch alone iterates it."""
    return (
        isinstance(loader, DataLoader)
        and all(getattr(type(loader), name, None) is getattr(DataLoader, name, None) for name in ITERATION)
        and not {"__iter__", "_get_iterator"} & vars(loader).keys()
        and not isinstance(loader.dataset, IterableDataset)
    )


class Replay:
    """Passes over a DataLoader that begin anywhere, through a copy of it with another sampler."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Iterate ``loader``; its workers start with the first pass, and persist if the loader's would."""
        inner = getattr(loader.batch_sampler, "sampler", None)
        if isinstance(loader.sampler, Sampler) != isinstance(inner, Sampler):
            raise SessionError(
                "sampler-batch-size", "slipway.Sampler makes the batches itself: give DataLoader a batch_size with it."
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
        """Return how many samples of the epoch all ranks have consumed after ``done`` batches; of slipway's Sampler."""
        return origin.samples + self._division(origin, world).end(done - origin.batches)

    def start(self, *, skip: int, origin: Origin, world: World, seeds: Seeds) -> Pass:
        """Begin a pass after ``skip`` batches.

        Args:
            skip: batches that this rank has done.
            origin: for slipway's Sampler: where its batches are counted from.
            world: of this rank.
            seeds: of this pass.
        """
        loader = self._copied(seeds)
        done = skip
        if loader.num_workers:  # so that each batch has the worker that it always has, of which it may depend
            skip -= (skip - origin.batches) % loader.num_workers
        if self.sampler:
            self._order.seed(seeds.order, world)
            division = self._division(origin, world)
            total: int | None = division.count + origin.batches
            indices: Iterator[Any] = self._shares(self.sampler.order(), division, origin, world, skip=skip)
        else:
            indices, total = self._order.draw(seeds.order, world)
            indices = itertools.islice(indices, skip, None)
        own = own_generators(loader.dataset, loader.collate_fn)
        if loader.num_workers:
            indices = (Request(derive(seeds.fetch, number), index) for number, index in enumerate(indices, skip))
        elif own:
            indices = _seeded_each(own, seeds.fetch, indices, skip)
        self._requests.now = indices
        self._iterator = iter(loader)
        batches: Iterator[Any] = itertools.islice(self._iterator, done - skip, None)
        if own or self._order.generators:  # the body of the loop may draw from them, too
            everything = [*self._order.generators, *own]
            batches = _seeded_each(everything, derive(seeds.fetch, Purpose.BODY), batches, done)
        return Pass(batches, total)

    def close(self) -> None:
        """End the workers."""
        _shut_down(self._iterator)

    def _copied(self, seeds: Seeds) -> DataLoader[Any]:
        """Return the copy of the loader with its attributes as they are now.

        A copy whose workers persist is kept, unless an attribute or a setting of the data set was changed: workers that
        start in a later attempt know only the new one.
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
        # In workers it is get_worker_info().seed: of those that persist, the same one whenever they start.
        self._copy.generator.manual_seed(seeds.start if loader.persistent_workers else seeds.fetch)
        return self._copy

    def _shares(
        self, order: Sequence[int], division: GlobalBatches, origin: Origin, world: World, *, skip: int
    ) -> Iterator[Sequence[int]]:
        """Yield the rank's part of each batch behind ``skip`` ones."""
        for number in range(skip - origin.batches, division.count):
            begin, end = (origin.samples + division.end(count) for count in (number, number + 1))
            yield list(share(order[begin:end], world.rank, world.size))

    def _division(self, origin: Origin, world: World) -> GlobalBatches:
        """Return how what follows ``origin`` is divided into batches; of slipway's Sampler."""
        assert self.sampler
        assert self._original.batch_size
        left = self.sampler.samples - origin.samples
        return global_batches(
            left, batch_size=self._original.batch_size, ranks=world.size, drop_last=self._original.drop_last
        )


def _seeded_each(generators: Sequence[Any], seed: int, items: Iterator[Any], first: int) -> Iterator[Any]:
    """Yield ``items``, each after ``generators`` were seeded by its number, from ``first`` on, for what follows."""
    for number, item in enumerate(items, first):
        reseed_all(generators, derive(seed, number))
        yield item


def _shut_down(iterator: Iterator[Any] | None) -> None:
    """End the workers of a DataLoader's iterator; left to the end of Python, that takes five seconds for each."""
    if shut_down := getattr(iterator, "_shutdown_workers", None):
        shut_down()


class Reread:
    """Passes over anything else, which begin at the first batch: those that are done are fetched again, and dropped.

    Of a list, a tuple or a range that costs nothing, and nothing is drawn for them.
    """

    sampler = None

    def __init__(self, iterable: Iterable[Any]) -> None:
        """Iterate ``iterable``."""
        self._iterable = iterable
        self.holds_batches = type(iterable) in {list, tuple, range}
        """Whether the batches are there, and fetching one again is no work."""
        self._own = OwnGenerators(iterable)
        if isinstance(iterable, DataLoader):
            seeded_loaders.add(iterable)
        self._iterator: Iterator[Any] | None = None

    def start(self, *, skip: int, world: World, seeds: Seeds) -> Pass:
        """Begin a pass; see Replay."""
        self._seed(seeds.order, world)
        try:
            total = len(self._iterable)  # type: ignore[arg-type]
        except (TypeError, NotImplementedError):  # IterableDataset, generators
            total = None
        self._iterator = iter(self._iterable)
        if self.holds_batches:
            rest = itertools.islice(self._iterator, skip, None)
            return Pass(self._seeded(rest, seeds.order, world, first=skip), total, reseeds=True)
        batches = self._seeded(self._iterator, seeds.order, world)
        return Pass(itertools.islice(batches, skip, None), total, reseeds=True)

    def close(self) -> None:
        """End the workers."""
        _shut_down(self._iterator)
        if isinstance(self._iterable, DataLoader):
            end_workers(self._iterable)

    def _seed(self, seed: int, world: World) -> None:
        seed_generators(seed)
        self._own.seed(seed, world)

    def _seeded(self, batches: Iterator[Any], seed: int, world: World, *, first: int = 0) -> Iterator[Any]:
        """Yield ``batches``, each fetched with generators that its number seeds, from ``first`` on."""
        for number in itertools.count(first):
            self._seed(derive(seed, number), world)
            try:
                batch = next(batches)
            except StopIteration:
                return
            yield batch

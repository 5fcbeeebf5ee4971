"""The batches of a DataLoader, from any batch of any epoch on: the same ones, whoever fetches them.

A DataLoader is iterated through a copy whose sampler is replaced. The order of an epoch is drawn at once, under a seed
of its own; a worker seeds the global generators before it fetches a batch. So a resumed run skips batches by their
index, and fetches the others with the random numbers that they always have. Without workers, the rank's own generators
serve, which a checkpoint holds.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from slipway.errors import SessionError
from slipway.sampler import GlobalBatches, Sampler, global_batches, share
from slipway.seeding import derive, seed_generators
from slipway.world import World


class Request(NamedTuple):
    """What a worker is to fetch: a batch, or a sample where the loader makes no batches."""

    seed: int
    index: Any
    """Indices of samples for a batch, or what the sampler gave."""


class Requests:
    """Takes the place of a sampler: the requests of the pass under way, for which the loader asks on each pass."""

    def __init__(self) -> None:
        """Request nothing yet."""
        self.now: Iterable[Any] = ()

    def __iter__(self) -> Iterator[Any]:
        """Yield the requests of this pass."""
        return iter(self.now)


class SeededDataset:
    """A data set that is asked for requests; in all else it is the user's own, on which it stands."""

    def __init__(self, dataset: Any) -> None:
        """Fetch from ``dataset``."""
        object.__setattr__(self, "_dataset", dataset)

    def __getitem__(self, request: Request) -> Any:
        """Fetch one sample."""
        seed_generators(request.seed)
        return self._dataset[request.index]

    def __getitems__(self, request: Request) -> Any:
        """Fetch the samples of a batch."""
        seed_generators(request.seed)
        at_once = getattr(self._dataset, "__getitems__", None)
        return at_once(request.index) if at_once else [self._dataset[index] for index in request.index]

    def __getattr__(self, name: str) -> Any:
        """Return what a ``worker_init_fn`` asks of the data set."""
        if name == "_dataset":  # of a copy that is being unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what a ``worker_init_fn`` sets of the data set."""
        setattr(self._dataset, name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to a worker that is spawned."""
        return SeededDataset, (self._dataset,)


class Origin(NamedTuple):
    """Where the batches of an epoch are counted from: its beginning, or where the number of ranks changed."""

    samples: int = 0
    """Samples of the epoch consumed before, over all ranks."""
    batches: int = 0
    """Batches of it done before."""


class Pass(NamedTuple):
    """A pass over the data under way."""

    batches: Iterator[Any]
    total: int | None
    """Number of batches of the whole pass, with those that are skipped; None if nobody knows."""
    reseeds: bool = False
    """Whether to fetch a batch seeds the generators of this process, so that the body of the loop needs seeds too."""


def can_replay(loader: object) -> bool:
    """Return whether batches of ``loader`` can be asked for by their index."""
    return (
        isinstance(loader, DataLoader)
        and type(loader).__iter__ is DataLoader.__iter__  # other libraries prefetch in theirs
        and not isinstance(loader.dataset, IterableDataset)
    )


class Replay:
    """A copy of a DataLoader whose passes begin anywhere."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Copy ``loader``; its workers start with the first pass, and persist if the loader's would."""
        inner = getattr(loader.batch_sampler, "sampler", None)
        if isinstance(loader.sampler, Sampler) != isinstance(inner, Sampler):
            raise SessionError(
                "sampler-batch-size", "slipway.Sampler makes the batches itself: give DataLoader a batch_size with it."
            )
        self._original = loader
        self._requests = Requests()
        self._iterator: Iterator[Any] | None = None
        alike = {name: getattr(loader, name) for name in COPIED if hasattr(loader, name)}
        if loader.num_workers == 0:
            alike.pop("prefetch_factor", None)
        if loader.batch_sampler is None:
            alike |= {"batch_size": None, "sampler": self._requests}
        else:
            alike |= {"batch_sampler": self._requests}
        dataset: Any = SeededDataset(loader.dataset) if loader.num_workers else loader.dataset
        self._copy: DataLoader[Any] = DataLoader(dataset, **alike)

    @property
    def sampler(self) -> Sampler | None:
        """The loader's sampler, if it is slipway's own."""
        return self._original.sampler if isinstance(self._original.sampler, Sampler) else None

    def consumed(self, done: int, origin: Origin, world: World) -> int:
        """Return how many samples of the epoch all ranks have consumed after ``done`` batches; of slipway's Sampler."""
        return origin.samples + self._division(origin, world).end(done - origin.batches)

    def start(self, *, skip: int, origin: Origin, world: World, order_seed: int, fetch_seed: int) -> Pass:
        """Begin a pass behind ``skip`` batches.

        Args:
            skip: batches that this rank has done.
            origin: for slipway's Sampler: where its batches are counted from.
            world: of this rank.
            order_seed: of the order, the same on all ranks. Samplers of torch that know of no ranks get others of it.
            fetch_seed: of the samples; another one on each rank.
        """
        self._seed_order(world, order_seed)
        if self.sampler:
            division = self._division(origin, world)
            total: int | None = division.count + origin.batches
            indices: Iterator[Any] = self._shares(self.sampler.order(), division, origin, world, skip=skip)
        else:
            order = list(self._indices) if hasattr(self._indices, "__len__") else self._indices
            total = len(order) if isinstance(order, list) else None
            indices = itertools.islice(order, skip, None)
        if self._copy.num_workers:
            indices = (Request(derive(fetch_seed, number), index) for number, index in enumerate(indices, skip))
        self._requests.now = indices
        self._iterator = iter(self._copy)
        return Pass(self._iterator, total)

    def close(self) -> None:
        """End the workers; left to the end of Python, that takes five seconds for each."""
        shut_down = getattr(self._iterator, "_shutdown_workers", None)
        if shut_down:
            shut_down()

    @property
    def _indices(self) -> Any:
        """The sampler that says what to fetch: of batches, or of samples where the loader makes no batches."""
        loader = self._original
        return loader.sampler if loader.batch_sampler is None else loader.batch_sampler

    def _seed_order(self, world: World, seed: int) -> None:
        """Seed what the order of a pass is drawn from."""
        loader, sampler = self._original, self._indices
        inner = getattr(sampler, "sampler", None)
        if isinstance(inner or sampler, WITHOUT_RANKS):
            seed = derive(seed, world.rank)
        seed_generators(seed)
        for owner in (loader, loader.sampler, sampler, inner):
            generator = getattr(owner, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(seed)

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


WITHOUT_RANKS = (RandomSampler, WeightedRandomSampler, SubsetRandomSampler)
"""Samplers that draw from all samples on each rank; the ranks must not draw the same."""
COPIED = (
    "num_workers",
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)
"""What a copy of a DataLoader takes over, as far as this torch has it."""


def start_unindexed(iterable: Iterable[Any], *, skip: int, order_seed: int) -> Pass:
    """Begin a pass over anything else behind ``skip`` batches, which are fetched and dropped."""
    seed_generators(order_seed)
    try:
        total = len(iterable)  # type: ignore[arg-type]
    except TypeError:  # IterableDataset, generators
        total = None
    return Pass(itertools.islice(_seeded(iter(iterable), order_seed), skip, None), total, reseeds=True)


def _seeded(batches: Iterator[Any], seed: int) -> Iterator[Any]:
    """Yield ``batches``, each fetched with generators that its number seeds."""
    for number in itertools.count():
        seed_generators(derive(seed, number))
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield batch

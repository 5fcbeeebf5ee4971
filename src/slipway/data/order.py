"""The order in which the samplers of a loader request samples: a function of its seed, from any place on."""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from slipway.base.environment import World
from slipway.data.sampler import Sampler
from slipway.rng.continuing_generators import generators_of
from slipway.rng.loader_generators import OwnGenerators, reseed_all
from slipway.rng.seeding import derive, seed_generators

WITHOUT_RANKS = (RandomSampler, WeightedRandomSampler, SubsetRandomSampler)
"""Samplers that draw from all samples on each rank; the ranks must not draw the same."""
CHUNK = 32
"""Requests of an endless sampler that are drawn at once, as each time the global generators are saved and restored."""


class Order:
    """The order of a loader's samplers; generators that these hold are seeded for each pass."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Draw from ``loader``, whose samplers stay the same."""
        sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        inner = getattr(sampler, "sampler", None)
        self._sampler = sampler
        self._has_ranks = not isinstance(inner or sampler, WITHOUT_RANKS)
        self._named = generators_of(loader)
        self._others = OwnGenerators(loader.sampler, sampler, without=self._named)
        of_slipway = [owner.generator for owner in (sampler, inner) if isinstance(owner, Sampler)]
        self.generators = [g for g in (*self._named, *self._others.found) if all(g is not own for own in of_slipway)]
        """Those of the script, which are not slipway's own."""

    def seed(self, seed: int, world: World) -> None:
        """Seed the generators from which the order is drawn.

        Args:
            seed: the same on all ranks; torch's random samplers get another one of it on each rank.
            world: of this rank.
        """
        seed = self._of_rank(seed, world)
        seed_generators(seed)
        for generator in self._named:
            generator.manual_seed(seed)
        self._others.seed(seed, world)

    def draw(self, seed: int, world: World) -> tuple[Iterator[Any], int | None]:
        """Return the order, and its length; None if it is not known, as of a sampler without end.

        What has a length is drawn at once. The rest is drawn while training draws from the same generators, and so
        under separate seeds.
        """
        self.seed(seed, world)
        requests = iter(self._sampler)
        promised = _length(self._sampler)
        drawn = [] if promised is None else list(itertools.islice(requests, promised + 1))
        if promised is not None and len(drawn) <= promised:
            return iter(drawn), len(drawn)
        return itertools.chain(drawn, self._apart(requests, self._of_rank(seed, world))), None

    def _apart(self, requests: Iterator[Any], seed: int) -> Iterator[Any]:
        """Yield ``requests``, drawn in chunks under separate seeds, so that nothing between them matters."""
        for number in itertools.count():
            with _preserved_generators():
                seed_generators(derive(seed, number))
                reseed_all(self.generators, derive(seed, number))
                chunk = list(itertools.islice(requests, CHUNK))
            if not chunk:
                return
            yield from chunk

    def _of_rank(self, seed: int, world: World) -> int:
        return seed if self._has_ranks else derive(seed, world.rank)


def _length(sampler: Any) -> int | None:
    """Return how many requests ``sampler`` promises; None if it has no length, or a batch sampler's own has none."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


@contextlib.contextmanager
def _preserved_generators() -> Iterator[None]:
    """Bring the global generators of the CPU back to where they are now."""
    numpy: Any = sys.modules.get("numpy")
    python, torchs = random.getstate(), torch.default_generator.get_state()
    numpys = numpy and numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.default_generator.set_state(torchs)
        if numpy:
            numpy.random.set_state(numpys)

"""Order in which a loader's samplers request samples, as a function of a seed."""

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
from slipway.rng.loader_generators import LoaderGenerators, reseed_all
from slipway.rng.seeding import derive, seed_generators

RANK_UNAWARE_SAMPLERS = (RandomSampler, WeightedRandomSampler, SubsetRandomSampler)
"""Samplers that draw from all samples on each rank, so they need a different seed on each rank."""
CHUNK = 32
"""Requests drawn at once from an endless sampler: each chunk saves and restores the global generators."""


class Order:
    """The order of a loader's samplers, whose generators are seeded for each pass."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        """Use the samplers of ``loader``, which must not be replaced later."""
        sampler: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        inner = getattr(sampler, "sampler", None)
        self._sampler = sampler
        self._has_ranks = not isinstance(inner or sampler, RANK_UNAWARE_SAMPLERS)
        self._named = generators_of(loader)
        self._others = LoaderGenerators(loader.sampler, sampler, without=self._named)
        of_slipway = [owner.generator for owner in (sampler, inner) if isinstance(owner, Sampler)]
        self.generators = [g for g in (*self._named, *self._others.found) if all(g is not own for own in of_slipway)]
        """The script's generators, without those of slipway.Sampler."""

    def seed(self, seed: int, world: World) -> None:
        """Seed the generators from which the order is drawn.

        Args:
            seed: the same on all ranks; for torch's random samplers, each rank derives its own seed from it.
            world: this rank's world.
        """
        seed = self._rank_seed(seed, world)
        seed_generators(seed)
        for generator in self._named:
            generator.manual_seed(seed)
        self._others.seed(seed, world)

    def draw(self, seed: int, world: World) -> tuple[Iterator[Any], int | None]:
        """Return the order and its length; the length is None if unknown, as for an endless sampler.

        An order of known length is drawn at once. Otherwise requests are drawn during training, which draws from the
        same generators, and therefore with separate seeds.
        """
        self.seed(seed, world)
        requests = iter(self._sampler)
        promised = _length(self._sampler)
        drawn = [] if promised is None else list(itertools.islice(requests, promised + 1))
        if promised is not None and len(drawn) <= promised:
            return iter(drawn), len(drawn)
        return itertools.chain(drawn, self._apart(requests, self._rank_seed(seed, world))), None

    def _apart(self, requests: Iterator[Any], seed: int) -> Iterator[Any]:
        """Yield ``requests``, drawn in chunks with separate seeds, so that draws between the chunks have no effect."""
        for number in itertools.count():
            with _preserved_generators():
                seed_generators(derive(seed, number))
                reseed_all(self.generators, derive(seed, number))
                chunk = list(itertools.islice(requests, CHUNK))
            if not chunk:
                return
            yield from chunk

    def _rank_seed(self, seed: int, world: World) -> int:
        return seed if self._has_ranks else derive(seed, world.rank)


def _length(sampler: Any) -> int | None:
    """Return the length of ``sampler``; None if the sampler, or the sampler inside a batch sampler, has no length."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


@contextlib.contextmanager
def _preserved_generators() -> Iterator[None]:
    """Restore the current states of the global CPU generators at the end of the body."""
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

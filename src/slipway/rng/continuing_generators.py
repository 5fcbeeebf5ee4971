"""Warn of loaders, iterated without ``session.batches``, whose generators continue from pass to pass."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch.utils.data import DataLoader

from slipway.base.errors import warn
from slipway.rng.seeding import state_digest

log = logging.getLogger(__name__)

seeded_loaders: WeakSet[DataLoader[Any]] = WeakSet()
"""Loaders whose generators a session seeds before each pass, so that no warning is needed."""


def generators_of(loader: DataLoader[Any]) -> list[torch.Generator]:
    """Return the generators that were passed to ``loader`` and its samplers."""
    inner = getattr(loader.batch_sampler, "sampler", None)
    owners = (loader, loader.sampler, loader.batch_sampler, inner)
    found = [getattr(owner, "generator", None) for owner in owners]
    return [generator for generator in found if isinstance(generator, torch.Generator)]


@contextlib.contextmanager
def warn_of_continuing_generators(saved: Iterable[object]) -> Iterator[None]:
    """Warn, while a session is open, if a loader's generator starts a later pass in a different state than the first.

    Such a pass differs after a resume. It would not if the script seeded the generator before each pass, or if the
    generator were in ``saved``.
    """
    known = {*map(id, saved)}
    first: dict[int, tuple[torch.Generator, int]] = {}
    warned = WeakSet[DataLoader[Any]]()
    iterate = DataLoader.__iter__

    def get_watched(loader: DataLoader[Any]) -> Any:
        if loader not in seeded_loaders and loader not in warned:
            for generator in generators_of(loader):
                now = state_digest(generator)
                if id(generator) not in known and first.setdefault(id(generator), (generator, now))[1] != now:
                    warned.add(loader)
                    warn(
                        log,
                        "unsaved-generator",
                        "a generator that was passed to a loader continues from pass to pass, and is not restored: "
                        "seed it before each pass, or iterate the loader with session.batches",
                    )
                    break
        return iterate(loader)

    DataLoader.__iter__ = get_watched  # type: ignore[method-assign]
    try:
        yield
    finally:
        DataLoader.__iter__ = iterate  # type: ignore[method-assign]

"""Random numbers of a run, all derived from its seed and the place where they are used.

No generator state is saved: a resumed run derives the same numbers again.
"""

from __future__ import annotations

import numpy as np

DROPOUT, SYNTHETIC, SPLIT, AERIAL = range(2, 6)
"""Purposes of streams, so that streams with the same seed, epoch and rank differ; earlier versions used 0 and 1."""


def stream(purpose: int, *key: int) -> np.random.Generator:
    """Return the generator for ``purpose`` at ``key`` (seed first, then epoch, rank, ...)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([purpose, *key])))

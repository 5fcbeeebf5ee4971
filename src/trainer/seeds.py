"""Every random number of a run, derived from its one seed and from where it is used.

No generator state is ever saved: a resumed run derives the same numbers again.
"""

from __future__ import annotations

import numpy as np
import torch

ORDER, AUGMENTATION, DROPOUT, SYNTHETIC, SPLIT = range(5)
"""What a stream is for, so that streams of equal seed, epoch and rank differ."""


def stream(purpose: int, *key: int) -> np.random.Generator:
    """Return the generator for ``purpose`` at ``key`` (seed first, then epoch, rank, ...)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([purpose, *key])))


class StepSeeder:
    """Seeds torch's generator before each optimiser step from (seed, rank, step), for dropout."""

    def __init__(self, device: torch.device, *, seed: int, rank: int) -> None:
        """Seed the generator of ``device``, which the layers on it draw from."""
        self._base = int(stream(DROPOUT, seed, rank).integers(2**62))
        if device.type == "cuda":
            self._generator = torch.cuda.default_generators[device.index or 0]
        else:
            self._generator = torch.default_generator

    def seed(self, step: int) -> None:
        """Make ready for optimiser step ``step``."""
        self._generator.manual_seed(self._base + step)

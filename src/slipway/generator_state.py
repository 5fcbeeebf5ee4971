"""The state of random number generators that a script draws from by itself: of torch, numpy and Python."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


class TorchGenerator:
    """A ``torch.Generator``."""

    def __init__(self, generator: torch.Generator) -> None:
        """Save ``generator``."""
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        """Return its state: uint8 [n]."""
        return {"state": self._generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over."""
        self._generator.set_state(state_dict["state"])

    def seed(self, seed: int) -> None:
        """Begin anew with ``seed``, of 63 bits."""
        self._generator.manual_seed(seed)


class NumpyGenerator:
    """A ``numpy.random.Generator``."""

    def __init__(self, generator: np.random.Generator) -> None:
        """Save ``generator``."""
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        """Return the state of its bit generator."""
        return dict(self._generator.bit_generator.state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take a state over."""
        self._generator.bit_generator.state = dict(state_dict)

    def seed(self, seed: int) -> None:
        """Begin anew with ``seed``, of 63 bits."""
        self.load_state_dict(type(self._generator.bit_generator)(seed).state)


class PythonGenerator:
    """A ``random.Random``."""

    def __init__(self, generator: random.Random) -> None:
        """Save ``generator``."""
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        """Return its state."""
        return {"state": self._generator.getstate()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over."""
        self._generator.setstate(state_dict["state"])

    def seed(self, seed: int) -> None:
        """Begin anew with ``seed``, of 63 bits."""
        self._generator.seed(seed)


GENERATORS: dict[type, Any] = {
    torch.Generator: TorchGenerator,
    np.random.Generator: NumpyGenerator,
    random.Random: PythonGenerator,
}

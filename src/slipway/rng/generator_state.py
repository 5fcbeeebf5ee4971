"""Save and restore the state of a user script's own random number generators (torch, NumPy, Python)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class GeneratorAdapter:
    """Base class of the adapters, which give a generator ``state_dict`` and ``load_state_dict``."""

    def __init__(self, generator: Any) -> None:
        """Wrap ``generator``."""
        self.generator = generator


class TorchGenerator(GeneratorAdapter):
    """State-dict adapter of a ``torch.Generator``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state, uint8 [n], under the key ``state``."""
        return {"state": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.generator.set_state(torch.as_tensor(state_dict["state"]))


class NumpyGenerator(GeneratorAdapter):
    """State-dict adapter of a ``numpy.random.Generator``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the bit generator."""
        return dict(self.generator.bit_generator.state)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.generator.bit_generator.state = dict(state_dict)


class NumpyRandomState(GeneratorAdapter):
    """State-dict adapter of a ``numpy.random.RandomState``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state."""
        return dict(self.generator.get_state(legacy=False))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.generator.set_state(state_dict)


class PythonGenerator(GeneratorAdapter):
    """State-dict adapter of a ``random.Random``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the generator's state under the key ``state``."""
        return {"state": self.generator.getstate()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state from ``state_dict``."""
        self.generator.setstate(state_dict["state"])


ADAPTERS: dict[type, Any] = {
    torch.Generator: TorchGenerator,
    np.random.Generator: NumpyGenerator,
    np.random.RandomState: NumpyRandomState,
    random.Random: PythonGenerator,
}


def wrapped(generator: Any) -> Any:
    """Return the state-dict adapter of ``generator``."""
    return next(adapter for kind, adapter in ADAPTERS.items() if isinstance(generator, kind))(generator)


class SavedGenerator(NamedTuple):
    """Saved generator among other data. Checkpoints contain this class's name: keep its name and fields."""

    kind: str
    """Name of the adapter class."""
    device: str
    """Device type of a ``torch.Generator``, else ""."""
    state: dict[str, Any]
    """State dict, with NumPy arrays instead of tensors."""

    @classmethod
    def of(cls, generator: Any) -> SavedGenerator:
        """Return the saved form of ``generator``."""
        wrapper = wrapped(generator)
        device = generator.device.type if isinstance(generator, torch.Generator) else ""
        state = wrapper.state_dict().items()
        arrays = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in state}
        return cls(type(wrapper).__name__, device, arrays)

    def restored(self, current: Any, device: torch.device) -> Any:
        """Return a generator with this state: ``current`` if it is of the same kind, else a new one.

        A new ``torch.Generator`` is on ``device`` if its type is the saved one, else on the saved device type.
        """
        kind: Any = next(kind for kind, adapter in ADAPTERS.items() if adapter.__name__ == self.kind)
        if isinstance(current, kind):
            found = current
        elif kind is torch.Generator:
            found = torch.Generator(device if device.type == self.device else self.device)
        elif "bit_generator" in self.state:
            found = kind(getattr(np.random, self.state["bit_generator"])())
        else:
            found = kind()
        wrapped(found).load_state_dict(self.state)
        return found

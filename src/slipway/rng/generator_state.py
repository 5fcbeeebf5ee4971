"""The state of random number generators that a script draws from by itself: of torch, numpy and Python."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slipway.rng.loader_generators import is_own_generator


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
        self._generator.set_state(torch.as_tensor(state_dict["state"]))

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


class NumpyRandomState:
    """A ``numpy.random.RandomState``."""

    def __init__(self, generator: np.random.RandomState) -> None:
        """Save ``generator``."""
        self._generator = generator

    def state_dict(self) -> dict[str, Any]:
        """Return its state."""
        return dict(self._generator.get_state(legacy=False))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over."""
        self._generator.set_state(state_dict)

    def seed(self, seed: int) -> None:
        """Begin anew with ``seed``, of 63 bits."""
        self._generator.seed(seed & 0xFFFFFFFF)


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
    np.random.RandomState: NumpyRandomState,
    random.Random: PythonGenerator,
}


def wrapped(generator: Any) -> Any:
    """Return what saves and restores ``generator``."""
    return GENERATORS[_kind_of(generator)](generator)


class SavedGenerator(NamedTuple):
    """A generator among other data. A checkpoint names this class: keep its name and fields."""

    kind: str
    """Name of the class that wraps it."""
    device: str
    """Kind of device of a ``torch.Generator``, or ""."""
    state: dict[str, Any]
    """With arrays for tensors."""

    @classmethod
    def of(cls, generator: Any) -> SavedGenerator:
        """Return the state of ``generator``."""
        wrapper = wrapped(generator)
        device = generator.device.type if isinstance(generator, torch.Generator) else ""
        state = wrapper.state_dict().items()
        arrays = {key: value.numpy() if isinstance(value, Tensor) else value for key, value in state}
        return cls(type(wrapper).__name__, device, arrays)

    def restored(self, current: Any, device: torch.device) -> Any:
        """Return a generator of this state: ``current`` if it is of the same kind, or else a new one, on ``device``."""
        kind: Any = next(kind for kind, wrapper in GENERATORS.items() if wrapper.__name__ == self.kind)
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


def _kind_of(generator: Any) -> type:
    return next(kind for kind in GENERATORS if isinstance(generator, kind))


States = dict[str, Any]
"""States of generators by name, as JSON."""


class GivenGenerators:
    """Those that a session was given, by name."""

    def __init__(self, extra: Mapping[str, Any]) -> None:
        """Take the generators among the objects ``extra``."""
        self._generators = {name: wrapped(each) for name, each in extra.items() if is_own_generator(each)}
        self.begun: States = {}
        """Their states at the beginning of the current epoch."""

    def begin_epoch(self) -> None:
        """Keep their states."""
        self.begun = {name: _as_json(each.state_dict()) for name, each in self._generators.items()}

    def begin_again(self, begun: States) -> None:
        """Restore the states that they had at the beginning of an epoch that is resumed."""
        self.begun = begun
        for name, each in self._generators.items():
            if name in begun:
                each.load_state_dict(_from_json(begun[name]))


def _as_json(value: Any) -> Any:
    """Return a state with text for its arrays, and a note of the kinds that JSON has not."""
    if isinstance(value, dict):
        return {key: _as_json(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return {"tuple": [_as_json(each) for each in value]}
    if isinstance(value, (Tensor, np.ndarray)):
        array = np.asarray(value)
        kind = "tensor" if isinstance(value, Tensor) else "array"
        return {kind: base64.b64encode(array.tobytes()).decode(), "dtype": array.dtype.str}
    return value


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_from_json(each) for each in value["tuple"])
    if "dtype" in value:
        array = np.frombuffer(base64.b64decode(value.get("tensor") or value["array"]), dtype=value["dtype"]).copy()
        return torch.from_numpy(array) if "tensor" in value else array
    return {key: _from_json(each) for key, each in value.items()}

"""The random generators in ``extra`` where an epoch begins: the code of one that is resumed draws from there again."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slipway.generator_state import wrapped
from slipway.own_generators import is_own_generator

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

"""What a session saves: the objects of a script, by name, each with ``state_dict`` and ``load_state_dict``."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from slipway.checkpoint.components import Stateful
from slipway.errors import SessionError

log = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def named_objects(kind: str, value: Any) -> dict[str, Any]:
    """Return the objects that an argument of a session names: one as ``kind``, several as ``kind.name``.

    Args:
        kind: name of the argument.
        value: an object, a dictionary of some by name, a list or a tuple of some, or None.

    Raises:
        SessionError: if a name cannot be that of a file.
    """
    if value is None:
        return {}
    if isinstance(value, (list, tuple)):
        value = {str(number): item for number, item in enumerate(value)}
    if not isinstance(value, Mapping):
        return {kind: value}
    for name in value:
        if not NAME.fullmatch(str(name)):
            raise SessionError("bad-name", f"{kind} has the name {name!r}: use letters, digits, '_', '.' and '-'.")
    return {f"{kind}.{name}": item for name, item in value.items()}


def component(name: str, value: Any) -> Stateful:
    """Return what saves and restores ``value``.

    Raises:
        SessionError: if nothing can.
    """
    if isinstance(value, nn.Module):
        return Model(name, value)
    if isinstance(value, Optimizer):
        return OptimizerState(name, value)
    for kind, wrapper in GENERATORS.items():
        if isinstance(value, kind):
            return wrapper(value)
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return value
    raise SessionError(
        "no-state-dict",
        f"{name} is of {type(value).__name__}, which has no state_dict and load_state_dict: pass an object that has.",
    )


def unwrap(model: nn.Module) -> nn.Module:
    """Return ``model`` without the wrappers that prefix the names of its parameters: DDP, torch.compile and Fabric."""
    while True:
        if isinstance(model, (DistributedDataParallel, DataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment] # noqa: SLF001 -- of an OptimizedModule
        elif isinstance(getattr(model, "_original_module", None), nn.Module):
            model = model._original_module  # type: ignore[assignment] # noqa: SLF001 -- of Lightning Fabric
        else:
            return model


def is_wrapped(model: object) -> bool:
    """Return whether the ranks average the gradients of ``model`` by themselves."""
    inner = (model, getattr(model, "_orig_mod", None), getattr(model, "_forward_module", None))  # the last is Fabric's
    return any(isinstance(each, DistributedDataParallel) for each in inner)


OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr"}
"""What schedulers of learning rates leave in an optimiser's groups of parameters."""


class Model:
    """A module without its wrappers, so that its state loads in plain torch, and under another number of ranks."""

    restores_in_place = True

    def __init__(self, name: str, module: nn.Module) -> None:
        """Save ``module``.

        Raises:
            SessionError: if its parameters are sharded over the ranks.
        """
        self._name = name
        self.module = unwrap(module)
        for parameter, tensor in self.module.named_parameters():
            if hasattr(tensor, "full_tensor") or type(module).__name__ == "FullyShardedDataParallel":
                raise SessionError(
                    "sharded-model",
                    f"{name} is sharded ({parameter}): a session saves models that each rank has whole.",
                )

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and buffers."""
        return self.module.state_dict()

    def differences(self, state_dict: Mapping[str, Any], *, source: str) -> str:
        """Return the first names by which ``state_dict``, of ``source``, is another model's; "" if it is this one's."""
        own = self.module.state_dict()
        differing = [f"{name} is missing in {source}" for name in own if name not in state_dict]
        differing += [f"{name} is not in the model" for name in state_dict if name not in own]
        differing += [
            f"{name} was {list(state_dict[name].shape)} and is {list(value.shape)}"
            for name, value in own.items()
            if isinstance(value, Tensor) and name in state_dict and state_dict[name].shape != value.shape
        ]
        return _first(differing)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take them over.

        Raises:
            SessionError: if they are another model's, naming what differs.
        """
        if differing := self.differences(state_dict, source="the checkpoint"):
            raise SessionError("different-state", f"{self._name} is not what was saved: {differing}.")
        own = self.module.state_dict()
        if hasattr(own, "_metadata"):  # versions of layers, for which some ask
            state_dict = type(own)(state_dict)
            state_dict._metadata = own._metadata  # type: ignore[attr-defined] # noqa: SLF001 -- torch's
        self.module.load_state_dict(state_dict)


class OptimizerState:
    """An optimiser's state and its groups of parameters, dtypes kept."""

    def __init__(self, name: str, optimizer: Optimizer) -> None:
        """Save ``optimizer``."""
        self._name = name
        self._optimizer = optimizer
        self._has_loaded = False

    def state_dict(self) -> dict[str, Any]:
        """Return its state_dict."""
        return self._optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over.

        Raises:
            SessionError: if it is another optimiser's.
        """
        before = [len(group["params"]) for group in state_dict["param_groups"]]
        now = [len(group["params"]) for group in self._optimizer.param_groups]
        groups = (state_dict["param_groups"], self._optimizer.param_groups)
        saved, own = ({key for group in either for key in group} - OF_SCHEDULERS for either in groups)
        if saved - own and own - saved:  # one of them alone: another version of torch
            raise SessionError(
                "different-state",
                f"{self._name} was of another kind when it was saved: with {_first(sorted(saved - own))}.",
            )
        if before != now:
            raise SessionError(
                "different-state", f"{self._name} had groups of {before} parameters when it was saved, and has {now}."
            )
        for was, group in zip(state_dict["param_groups"], self._optimizer.param_groups, strict=True):
            key = "initial_lr" if "initial_lr" in was and "initial_lr" in group else "lr"
            if was.get(key) != group.get(key) and not self._has_loaded:
                log.info("%s goes on with the %s %s that was saved, not %s", self._name, key, was[key], group[key])
        self._load(state_dict)
        self._has_loaded = True
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        for number, saved in state_dict["state"].items():
            if isinstance(number, int) and isinstance(saved, dict):
                self._restore_layout(parameters[number], saved)

    def _load(self, state_dict: dict[str, Any]) -> None:
        """Load as torch does, but into the groups that there are: the script may hold references to them already."""
        groups = [*self._optimizer.param_groups]
        self._optimizer.load_state_dict(state_dict)
        if type(self._optimizer).load_state_dict is not Optimizer.load_state_dict:
            return  # which may share its groups with another optimiser
        for group, loaded in zip(groups, self._optimizer.param_groups, strict=True):
            group.clear()
            group.update(loaded)
        self._optimizer.param_groups[:] = groups

    def _restore_layout(self, parameter: Tensor, saved: dict[str, Any]) -> None:
        """Give state its dtype back, for which torch takes the parameter's, and the parameter's order in memory."""
        state = self._optimizer.state[parameter]
        for key, value in saved.items():
            loaded = state.get(key)
            if not isinstance(value, Tensor) or not isinstance(loaded, Tensor):
                continue
            if loaded.shape == parameter.shape:
                state[key] = torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)
            elif loaded.dtype != value.dtype:
                state[key] = value.to(loaded.device)


class TorchGenerator:
    """A generator that a script draws from by itself."""

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


def _first(differing: list[str]) -> str:
    more = f", and {len(differing) - 3} more" if len(differing) > 3 else ""  # noqa: PLR2004
    return "; ".join(differing[:3]) + more

"""State of a model: its parameters and buffers, by names without wrappers."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from slipway.base.errors import SessionError, warn
from slipway.checkpoint.shards import is_sharded
from slipway.dist.data_ranks import fsdp_groups
from slipway.state.loadable import Mismatch, differences, empty_buffers, named, shapes_of
from slipway.state.meta_tensors import has_meta_tensors, materialize
from slipway.state.wrappers import is_kind, plain_name, unwrap, wrapped_child

log = logging.getLogger(__name__)

V = TypeVar("V")


class Model:
    """A module without its wrappers, whose state loads in plain torch and under another number of ranks."""

    restores_in_place = True

    def __init__(self, name: str, module: nn.Module) -> None:
        """Unwrap ``module`` and record the shapes of its tensors.

        Raises:
            SessionError: if the module is sharded by FullyShardedDataParallel.
        """
        self._name = name
        self.module = unwrap(module)
        _refuse_flat_parameters(name, module)
        self._initial = shapes_of(self.module)
        self._loads = 0
        self.is_incomplete = False
        """Whether the last load found dtypes that differ from the saved ones, which the next load must not find."""
        self._warned: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """Return the initialized parameters and buffers; warn of tensors that the next attempt's model cannot load."""
        state = {plain: value for plain, _, value in self._own() if not is_lazy(value)}
        changed = named(_change(each) for each in differences(self.module, self._initial, state))
        if changed and changed not in self._warned:
            self._warned.add(changed)
            warn(log, "unresumable-state", "%s has changed since the session began: %s", self._name, changed)
        return state

    @property
    def is_sharded(self) -> bool:
        """Whether the module has DTensors; a forward pass makes those of ``fully_shard`` plain tensors for a while."""
        tensors = itertools.chain(self.module.parameters(), self.module.buffers())
        return any(map(fsdp_groups, self.module.modules())) or any(map(is_sharded, tensors))

    def materialize(self) -> bool:
        """Give tensors on the meta device memory; return whether there are any, so that a load must follow.

        Raises:
            SessionError: if this is not possible.
        """
        if not has_meta_tensors(self.module):
            return False
        materialize(self._name, self.module)
        return True

    @property
    def is_loaded(self) -> bool:
        """Whether a state was loaded."""
        return self._loads > 0

    def with_tied(self, state_dict: Mapping[str, V]) -> dict[str, V]:
        """Return ``state_dict`` with an entry for each name of a tied parameter: files hold one of its names."""
        names: dict[int, list[str]] = {}
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(plain_name(self.module, name))
        found = dict(state_dict)
        for tied in names.values():
            if given := [name for name in tied if name in state_dict]:
                found |= {name: state_dict[given[0]] for name in tied if name not in state_dict}
        return found

    def layouts(self, _saved: object) -> Callable[[str], Tensor | None]:
        """Return the function that returns the parameter or buffer of a name."""
        return {plain: value for plain, _, value in self._own() if isinstance(value, Tensor)}.get

    def differences(self, state_dict: Mapping[str, Any], *, source: str) -> str:
        """Return how ``state_dict``, from ``source``, differs from this model's state, as text; "" if it does not."""
        differing = differences(self.module, shapes_of(self.module), state_dict)
        return named(_mismatch(each, source) for each in differing)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load ``state_dict`` as torch does, into modules with or without wrappers.

        Raises:
            SessionError: if the state does not fit the model; the message names the differing tensors.
        """
        self._loads += 1
        self._fill_empty_buffers(state_dict)
        names = {plain: name for plain, name, _ in self._own()}
        state = {name: value for _, name, value in self._own() if is_lazy(value)}  # not initialized when saved either
        state |= {names.get(name, name): value for name, value in state_dict.items()}
        own = self.module.state_dict()
        if hasattr(own, "_metadata"):  # versions of layers, which some layers check
            state = type(own)(state)
            state._metadata = own._metadata  # type: ignore[attr-defined] # noqa: SLF001 -- torch's
        try:
            self.module.load_state_dict(state)
        except Exception as error:  # torch's RuntimeError, or any error of a module's own code
            reason = self.differences(state_dict, source="the checkpoint") or str(error).strip()
            raise SessionError("different-state", f"{self._name} differs from the saved state: {reason}.") from error
        self._require_dtypes(state_dict)

    def _require_dtypes(self, state_dict: Mapping[str, Any]) -> None:
        """Raise a SessionError if dtypes differ; not at the first load, after which a script may convert its model."""
        differing = [
            f"{name} was {state_dict[name].dtype} and is {value.dtype}"
            for name, _, value in self._own()
            if isinstance(value, Tensor) and isinstance(state_dict.get(name), Tensor) and not is_lazy(value)
            if state_dict[name].dtype != value.dtype
        ]
        self.is_incomplete = bool(differing)
        if differing and self._loads > 1:
            raise SessionError("different-state", f"{self._name} differs from the saved state: {named(differing)}.")

    def _own(self) -> Iterator[tuple[str, str, Any]]:
        """Yield the entries of the module's ``state_dict``: name without wrappers, name, value."""
        wraps = any(map(wrapped_child, self.module.modules()))
        for name, value in self.module.state_dict().items():
            yield plain_name(self.module, name) if wraps else name, name, value

    def _fill_empty_buffers(self, state_dict: Mapping[str, Any]) -> None:
        """Create the buffers that are registered as None in the module and were saved as tensors."""
        for plain, (owner, name) in empty_buffers(self.module).items():
            if isinstance(saved := state_dict.get(plain), Tensor):
                device = next((tensor.device for tensor in self.module.parameters()), saved.device)
                owner._buffers[name] = torch.empty_like(saved, device=device)  # noqa: SLF001


def _refuse_flat_parameters(name: str, model: nn.Module) -> None:
    """Raise a SessionError if FullyShardedDataParallel or DeepSpeed shards ``model``: they hide its parameters."""
    for part, module in model.named_modules():
        if is_kind(module, "DeepSpeedEngine"):
            raise SessionError("sharded-model", f"{name} is a DeepSpeedEngine.")
        if is_kind(module, "FullyShardedDataParallel"):
            where = f" in {part}" if part else ""
            raise SessionError("sharded-model", f"{name} is sharded by FullyShardedDataParallel{where}.")


def _change(differing: Mismatch) -> str:
    name, before, now = differing
    return (
        f"{name} was removed"
        if now is None
        else f"{name} was added"
        if before is None
        else f"{name} was {before} and is {now}"
    )


def _mismatch(differing: Mismatch, source: str) -> str:
    name, own, given = differing
    if given is None:
        return f"{name} is missing in {source}"
    return f"{name} is not in the model" if own is None else f"{name} was {given} and is {own}"

"""The state of a model: its parameters and buffers by the names that they have without wrappers."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from slipway.base.errors import SessionError, warn
from slipway.state.loadable import Mismatch, differences, empty_buffers, named, shapes_of
from slipway.state.wrappers import is_kind, plain_name, unwrap, wrapped_child

log = logging.getLogger(__name__)


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
        _require_whole(name, module)
        self._at_first = shapes_of(self.module)
        self._loads = 0
        self.is_incomplete = False
        """Whether a second load has to see that the script has given tensors the dtypes that were saved."""
        self._warned: set[str] = set()

    def state_dict(self) -> dict[str, Any]:
        """Return the parameters and buffers that are initialized; warn of what the next attempt's model cannot load."""
        state = {plain: value for plain, _, value in self._own() if not is_lazy(value)}
        changed = named(_change(each) for each in differences(self.module, self._at_first, state))
        if changed and changed not in self._warned:
            self._warned.add(changed)
            warn(log, "unresumable-state", "%s has changed since the session began: %s", self._name, changed)
        return state

    def differences(self, state_dict: Mapping[str, Any], *, source: str) -> str:
        """Return the first names by which ``state_dict``, of ``source``, is another model's; "" if it is this one's."""
        differing = differences(self.module, shapes_of(self.module), state_dict)
        return named(_mismatch(each, source) for each in differing)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load it as torch does, into modules with wrappers or without.

        Raises:
            SessionError: if it is another model's, naming what differs.
        """
        self._loads += 1
        self._fill_empty_buffers(state_dict)
        names = {plain: name for plain, name, _ in self._own()}
        state = {name: value for _, name, value in self._own() if is_lazy(value)}  # what was not initialized either
        state |= {names.get(name, name): value for name, value in state_dict.items()}
        own = self.module.state_dict()
        if hasattr(own, "_metadata"):  # versions of layers, for which some ask
            state = type(own)(state)
            state._metadata = own._metadata  # type: ignore[attr-defined] # noqa: SLF001 -- torch's
        try:
            self.module.load_state_dict(state)
        except Exception as error:  # torch's RuntimeError, or what a module's own code raises
            reason = self.differences(state_dict, source="the checkpoint") or str(error).strip()
            raise SessionError("different-state", f"{self._name} is not what was saved: {reason}.") from error
        self._require_dtypes(state_dict)

    def _require_dtypes(self, state_dict: Mapping[str, Any]) -> None:
        """Refuse to continue in another precision; not at the opening, after which a script may convert its model."""
        differing = [
            f"{name} was {state_dict[name].dtype} and is {value.dtype}"
            for name, _, value in self._own()
            if isinstance(value, Tensor) and isinstance(state_dict.get(name), Tensor) and not is_lazy(value)
            if state_dict[name].dtype != value.dtype
        ]
        self.is_incomplete = bool(differing)
        if differing and self._loads > 1:
            raise SessionError("different-state", f"{self._name} is not what was saved: {named(differing)}.")

    def _own(self) -> Iterator[tuple[str, str, Any]]:
        """Yield what the module's ``state_dict`` holds: name without wrappers, name, value."""
        wraps = any(map(wrapped_child, self.module.modules()))
        for name, value in self.module.state_dict().items():
            yield plain_name(self.module, name) if wraps else name, name, value

    def _fill_empty_buffers(self, state_dict: Mapping[str, Any]) -> None:
        """Make the buffers that were registered as None and were saved as tensors."""
        for plain, (owner, name) in empty_buffers(self.module).items():
            if isinstance(saved := state_dict.get(plain), Tensor):
                device = next((tensor.device for tensor in self.module.parameters()), saved.device)
                owner._buffers[name] = torch.empty_like(saved, device=device)  # noqa: SLF001


def _require_whole(name: str, model: nn.Module) -> None:
    """Raise a SessionError if a part of ``model`` is sharded over the ranks."""
    for part, module in model.named_modules():
        if is_kind(module, "FullyShardedDataParallel"):
            where = f" in {part}" if part else ""
            raise SessionError("sharded-model", f"{name} is sharded by FullyShardedDataParallel{where}.")
    for part, tensor in itertools.chain(model.named_parameters(), model.named_buffers()):
        if hasattr(tensor, "full_tensor"):
            raise SessionError("sharded-model", f"{name} is sharded: {part} is a {type(tensor).__name__}.")


def _change(differing: Mismatch) -> str:
    name, before, now = differing
    return (
        f"{name} is gone"
        if now is None
        else f"{name} is new"
        if before is None
        else f"{name} was {before} and is {now}"
    )


def _mismatch(differing: Mismatch, source: str) -> str:
    name, own, given = differing
    if given is None:
        return f"{name} is missing in {source}"
    return f"{name} is not in the model" if own is None else f"{name} was {given} and is {own}"

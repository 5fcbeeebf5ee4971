"""Warning for scripts that call models in a resumed epoch before they reach the saved position."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import nn

from slipway.base.errors import warn
from slipway.state.wrappers import unwrap

log = logging.getLogger(__name__)


class EarlyUse:
    """Detects calls of models in a resumed epoch before its batches, when their weights are newer than originally."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """Register hooks on ``models``, by name; calls count once ``in_epoch`` is set."""
        self.in_epoch = False
        self._called: list[str] = []
        self._hooks = [
            module.register_forward_pre_hook(lambda *_, name=name: self._note(name))
            for name, model in models.items()
            for module in unwrap(model).modules()
            if not isinstance(module, torch.jit.ScriptModule)  # does not accept hooks
        ]

    def _note(self, name: str) -> None:
        if self.in_epoch and name not in self._called:
            self._called.append(name)

    def close(self) -> None:
        """Remove the hooks."""
        while self._hooks:
            self._hooks.pop().remove()

    def end(self, *, within: bool) -> None:
        """Remove the hooks when training continues, and warn of models called if it continues ``within`` an epoch."""
        self.close()
        if self._called and within:
            warn(
                log,
                "model-before-batches",
                "the script called %s in the resumed epoch before its batches, with the saved weights and not those "
                "from the beginning of the epoch. If training depends on the result, compute it only if session.batch "
                "is 0, and save it through extra",
                ", ".join(self._called),
            )

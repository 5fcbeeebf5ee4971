"""Models that code of a resumed epoch calls before it comes to the place at which the run was saved."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import torch
from torch import nn

from slipway.base.errors import warn
from slipway.state.wrappers import unwrap

log = logging.getLogger(__name__)


class EarlyUse:
    """Sees whether models are called in a resumed epoch before its batches, with later weights than they had there."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        """Look at ``models``, by name, from the beginning of an epoch on."""
        self.in_epoch = False
        self._called: list[str] = []
        self._hooks = [
            module.register_forward_pre_hook(lambda *_, name=name: self._note(name))
            for name, model in models.items()
            for module in unwrap(model).modules()
            if not isinstance(module, torch.jit.ScriptModule)  # which takes no hooks
        ]

    def _note(self, name: str) -> None:
        if self.in_epoch and name not in self._called:
            self._called.append(name)

    def close(self) -> None:
        """Look no further."""
        while self._hooks:
            self._hooks.pop().remove()

    def end(self, *, within: bool) -> None:
        """Warn, where training continues, of the models that were called ``within`` an epoch that is half done."""
        self.close()
        if self._called and within:
            warn(
                log,
                "model-before-batches",
                "code of the resumed epoch has called %s before its batches, with the weights that were saved and not "
                "those with which the epoch began: if training depends on the result, compute it if session.batch is "
                "0, and keep it in extra",
                ", ".join(self._called),
            )

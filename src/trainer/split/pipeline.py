"""Stages at work: each micro-batch passes forward through all of them and backward again, as a schedule says.

One thread issues the passes; on GPUs they are launched and not waited for, so that stages overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.split.cut import cut
from trainer.split.schedule import SCHEDULES, Unit


class _Pass(NamedTuple):
    """What a forward pass leaves for the backward pass."""

    entering: Tensor
    """On the device of the stage before, to which its gradient goes."""
    leaving: Tensor


class Pipeline:
    """A model cut into stages, each on its device."""

    def __init__(self, model: nn.Module, names: Sequence[str], devices: Sequence[torch.device]) -> None:
        """Cut ``model`` before each of ``names``, and bring each stage to its device.

        Raises:
            ConfigError: if it cannot be cut there.
        """
        self.stages = cut(model, names)
        self.devices = devices
        for stage, device in zip(self.stages, devices, strict=True):
            stage.to(device)  # the parameters of the model itself

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits [n, classes], on the last device."""
        found = images
        for stage, device in zip(self.stages, self.devices, strict=True):
            found = stage(found.to(device, non_blocking=True))
        return found

    def train(
        self,
        inputs: Sequence[Callable[[], Tensor]],
        loss: Callable[[int, Tensor], Tensor],
        *,
        schedule: str,
        forward: Callable[[int], AbstractContextManager[None]],
        around: Callable[[Unit, Callable[[], None]], None] | None = None,
    ) -> None:
        """Add to the gradients what the micro-batches of an optimiser step have to say.

        Args:
            inputs: for each micro-batch, what makes its images on the first device.
            loss: returns the loss of a micro-batch, of its number and its logits.
            schedule: name of one of SCHEDULES.
            forward: the context of a forward pass of the micro-batch of that number.
            around: calls each pass that it is given, for instance to measure it.
        """
        last = len(self.stages) - 1
        passes: dict[tuple[int, int], _Pass] = {}
        gradients: dict[tuple[int, int], Tensor] = {}

        def go_forward(stage: int, micro: int) -> None:
            entering = passes[stage - 1, micro].leaving.detach().requires_grad_() if stage else inputs[micro]()
            # A copy on the same device too: a stage may change in place what it is given.
            received = entering.to(self.devices[stage], non_blocking=True, copy=stage > 0)
            with forward(micro):
                leaving = self.stages[stage](received)
            passes[stage, micro] = _Pass(entering, leaving)

        def go_backward(stage: int, micro: int) -> None:
            entering, leaving = passes.pop((stage, micro))
            if not leaving.requires_grad:  # a first stage without parameters
                return
            if stage == last:
                loss(micro, leaving).backward()
            else:
                leaving.backward(gradients.pop((stage, micro)))
            if stage:
                assert entering.grad is not None
                gradients[stage - 1, micro] = entering.grad

        for unit in SCHEDULES[schedule](len(self.stages), len(inputs)):
            go = partial(go_forward if unit.kind == "F" else go_backward, unit.stage, unit.micro)
            if around:
                around(unit, go)
            else:
                go()

"""Stages at work: each micro-batch passes forward through all of them and backward again, as a schedule says.

One thread issues the passes; on GPUs they are launched and not waited for, so that stages overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from trainer.parallel.stages.cut import cut
from trainer.parallel.stages.schedule import SCHEDULES, Unit

M = TypeVar("M")
"""A micro-batch, of whatever type."""
M_contra = TypeVar("M_contra", contravariant=True)
Measure = Callable[[Unit], AbstractContextManager[None]]


class Passes(Protocol[M_contra]):
    """What a pipeline does not know of training."""

    def prepare(self, micro: M_contra) -> Tensor:
        """Return what goes into the model: floats [n, c, h, w] on the first device."""
        ...

    def forward(self, micro: M_contra) -> AbstractContextManager[None]:
        """Return the context of a forward pass of ``micro``."""
        ...

    def loss(self, micro: M_contra, logits: Tensor) -> Tensor:
        """Return what is to be differentiated, given the logits [n, classes] of ``micro``."""
        ...


class _Pass(NamedTuple):
    """What a forward pass leaves for the backward pass."""

    entering: Tensor
    """On the device of the stage before, to which its gradient goes."""
    leaving: Tensor


class Pipeline:
    """A model cut into stages, each on its device."""

    def __init__(
        self, model: nn.Module, names: Sequence[str], devices: Sequence[torch.device], *, schedule: str = "1f1b"
    ) -> None:
        """Cut ``model`` before each of ``names``, and bring each stage to its device.

        Args:
            model: maps one tensor to one tensor.
            names: of its submodules.
            devices: of the stages, one more than ``names``.
            schedule: name of one of SCHEDULES.

        Raises:
            ConfigError: if it cannot be cut there.
        """
        self.stages = cut(model, names)
        self.names, self.devices, self.schedule = names, devices, schedule
        for stage, device in zip(self.stages, devices, strict=True):
            if any(tensor.device != device for tensor in (*stage.parameters(), *stage.buffers())):
                stage.to(device)  # the parameters of the model itself

    def of(self, copy: nn.Module) -> Pipeline:
        """Return ``copy``, a copy of the model, cut in the same places for the same devices."""
        return Pipeline(copy, self.names, self.devices, schedule=self.schedule)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits [n, classes], on the last device."""
        found = images
        for stage, device in zip(self.stages, self.devices, strict=True):
            found = stage(found.to(device, non_blocking=True))
        return found

    def train(self, micros: Iterator[M], count: int, passes: Passes[M], *, measure: Measure | None = None) -> None:
        """Add to the gradients what the micro-batches of an optimiser step have to say.

        Args:
            micros: the micro-batches, read one by one as the first stage gets to them.
            count: of them.
            passes: how they are trained on.
            measure: is entered around each pass.
        """
        last = len(self.stages) - 1
        measure = measure or _unmeasured
        under_way: dict[int, M] = {}
        left: dict[tuple[int, int], _Pass] = {}
        gradients: dict[tuple[int, int], Tensor] = {}

        def go_forward(unit: Unit) -> None:
            stage, _, number = unit
            if stage == 0:
                under_way[number] = next(micros)
                entering = passes.prepare(under_way[number])
            else:
                entering = left[stage - 1, number].leaving.detach().requires_grad_()
            # A copy on the same device too: a stage may change in place what it is given.
            received = entering.to(self.devices[stage], non_blocking=True, copy=stage > 0)
            with passes.forward(under_way[number]):
                leaving = self.stages[stage](received)
            left[stage, number] = _Pass(entering, leaving)

        def go_backward(unit: Unit) -> None:
            stage, _, number = unit
            entering, leaving = left.pop((stage, number))
            if stage == last:
                passes.loss(under_way.pop(number), leaving).backward()
            else:
                gradient = gradients.pop((stage, number))
                if leaving.requires_grad:  # a first stage may have no parameters
                    leaving.backward(gradient)
            if stage:
                assert entering.grad is not None
                gradients[stage - 1, number] = entering.grad

        for unit in SCHEDULES[self.schedule](len(self.stages), count):
            with measure(unit):
                (go_forward if unit.kind == "F" else go_backward)(unit)


def _unmeasured(_unit: Unit) -> AbstractContextManager[None]:
    return nullcontext()

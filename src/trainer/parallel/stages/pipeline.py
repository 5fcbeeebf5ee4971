"""Pipeline over a model's stages: runs the forward and backward passes of micro-batches in a schedule's order.

One thread issues the passes. On GPUs it launches them without waiting, so that stages overlap.
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
"""A micro-batch, of any type."""
M_contra = TypeVar("M_contra", contravariant=True)
Measure = Callable[[Unit], AbstractContextManager[None]]


class Passes(Protocol[M_contra]):
    """The parts of a training step that the caller of a pipeline supplies."""

    def prepare(self, micro: M_contra) -> Tensor:
        """Return the model's input: floats [n, c, h, w] on the first device."""
        ...

    def forward(self, micro: M_contra) -> AbstractContextManager[None]:
        """Return the context of a forward pass of ``micro``."""
        ...

    def loss(self, micro: M_contra, logits: Tensor) -> Tensor:
        """Return the loss to differentiate, given the logits [n, classes] of ``micro``."""
        ...


class _Pass(NamedTuple):
    """Tensors of a forward pass that the backward pass needs."""

    entering: Tensor
    """The input, on the device of the previous stage, which receives its gradient."""
    leaving: Tensor


class Pipeline:
    """A model cut into stages, each on its device."""

    def __init__(
        self, model: nn.Module, names: Sequence[str], devices: Sequence[torch.device], *, schedule: str = "1f1b"
    ) -> None:
        """Cut ``model`` before each of ``names``, and move each stage to its device.

        Args:
            model: maps one tensor to one tensor.
            names: submodules of ``model``.
            devices: of the stages, one more than ``names``.
            schedule: a name in SCHEDULES.

        Raises:
            ConfigError: if the model cannot be cut there.
        """
        self.stages = cut(model, names)
        self.names, self.devices, self.schedule = names, devices, schedule
        for stage, device in zip(self.stages, devices, strict=True):
            if any(tensor.device != device for tensor in (*stage.parameters(), *stage.buffers())):
                stage.to(device)  # the parameters of the model itself

    def of(self, copy: nn.Module) -> Pipeline:
        """Return a pipeline of ``copy``, a copy of the model, with the same cuts and devices."""
        return Pipeline(copy, self.names, self.devices, schedule=self.schedule)

    def __call__(self, images: Tensor) -> Tensor:
        """Return the logits [n, classes], on the last device."""
        found = images
        for stage, device in zip(self.stages, self.devices, strict=True):
            found = stage(found.to(device, non_blocking=True))
        return found

    def train(self, micros: Iterator[M], count: int, passes: Passes[M], *, measure: Measure | None = None) -> None:
        """Accumulate the gradients of an optimizer step's micro-batches.

        Args:
            micros: the micro-batches; each is read when its first stage runs.
            count: number of micro-batches.
            passes: the caller's part of the training step.
            measure: returns a context that is entered around each pass.
        """
        last = len(self.stages) - 1
        measure = measure or (lambda _unit: nullcontext())
        under_way: dict[int, M] = {}
        left: dict[tuple[int, int], _Pass] = {}
        gradients: dict[tuple[int, int], Tensor] = {}

        def run_forward(unit: Unit) -> None:
            stage, _, number = unit
            if stage == 0:
                under_way[number] = next(micros)
                entering = passes.prepare(under_way[number])
            else:
                entering = left[stage - 1, number].leaving.detach().requires_grad_()
            # Copy also on the same device: a stage may change its input in place.
            received = entering.to(self.devices[stage], non_blocking=True, copy=stage > 0)
            with passes.forward(under_way[number]):
                leaving = self.stages[stage](received)
            left[stage, number] = _Pass(entering, leaving)

        def run_backward(unit: Unit) -> None:
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
                (run_forward if unit.kind == "F" else run_backward)(unit)

"""Where to cut, so that the slowest stage is as fast as possible: pieces are measured, and put together."""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.errors import ConfigError
from trainer.split.cut import places
from trainer.split.pipeline import Pipeline
from trainer.split.schedule import Unit

ROUNDS = 5
"""Measured passes, of which the median counts; one more goes before them."""


class Piece(NamedTuple):
    """A part of a model between two places where it can be cut, and what it takes."""

    name: str
    """The submodule with which it begins; "" for the first piece."""
    seconds: float
    """Forward and backward pass of a micro-batch."""
    parameters: int
    """Bytes of parameters and buffers."""
    activations: int
    """Bytes that a micro-batch keeps for its backward pass, without the parameters."""


def measure(model: nn.Module, images: Tensor, *, device: torch.device) -> list[Piece]:
    """Return the pieces of ``model``, measured on ``device``; the model itself stays as it is.

    Args:
        model: maps images to logits.
        images: floats of a micro-batch [n, c, h, w].
        device: on which every piece is measured.
    """
    names = places(model)
    pipeline = Pipeline(copy.deepcopy(model), names, [device] * (len(names) + 1))
    clock = _Clock(device)
    rounds = []
    for _ in range(ROUNDS + 1):
        clock.seconds.clear()
        pipeline.train(
            [lambda: images.to(device)],
            lambda _micro, logits: logits.float().square().mean(),
            schedule="gpipe",
            forward=lambda _micro: nullcontext(),
            around=clock.around,
        )
        rounds.append(dict(clock.seconds))
    kept = _activations(pipeline, images.to(device))
    return [
        Piece(
            name,
            statistics.median(found[Unit(stage, "F", 0)] + found[Unit(stage, "B", 0)] for found in rounds[1:]),
            sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers())),
            kept[stage],
        )
        for stage, (name, module) in enumerate(zip(["", *names], pipeline.stages, strict=True))
    ]


def balance(pieces: Sequence[Piece], stages: int, *, memory: Callable[[Sequence[Piece], int], bool]) -> list[str]:
    """Return before which submodules to cut: so that the slowest stage is as fast as possible.

    Args:
        pieces: in their order.
        stages: number of them.
        memory: whether pieces fit the device of a stage, of that number.

    Raises:
        ConfigError: if there are too few pieces, or they fit no devices.
    """
    if len(pieces) < stages:
        raise ConfigError(f"--split auto: the model can be cut into {len(pieces)} piece(s), and not {stages} stages.")
    ends = range(len(pieces) + 1)
    best: dict[tuple[int, int], tuple[float, list[int]]] = {(0, 0): (0.0, [])}
    for stage, end in itertools.product(range(1, stages + 1), ends):
        options = [
            (max(before[0], sum(piece.seconds for piece in pieces[begin:end])), [*before[1], begin])
            for begin in range(end)
            if (before := best.get((stage - 1, begin))) and memory(pieces[begin:end], stage - 1)
        ]
        if options:
            best[stage, end] = min(options)
    found = best.get((stages, len(pieces)))
    if not found:
        raise ConfigError(f"--split auto: {stages} stages do not fit the memory of their devices: take more of them.")
    return [pieces[begin].name for begin in found[1][1:]]


def _activations(pipeline: Pipeline, images: Tensor) -> list[int]:
    """Return how many bytes each stage keeps for the backward pass, apart from its parameters."""
    kept = []
    entering = images
    for number, stage in enumerate(pipeline.stages):
        own = {tensor.untyped_storage().data_ptr() for tensor in (*stage.parameters(), *stage.buffers())}
        storages: dict[int, int] = {}

        def pack(tensor: Tensor, own: set[int] = own, storages: dict[int, int] = storages) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                storages[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            entering = stage(entering.detach().requires_grad_(number > 0).clone())
        kept.append(sum(storages.values()))
    return kept


class _Clock:
    """Measures passes, each waited for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: dict[Unit, float] = {}

    def around(self, unit: Unit, action: Callable[[], None]) -> None:
        self._wait()
        before = time.perf_counter()
        action()
        self._wait()
        self.seconds[unit] = time.perf_counter() - before

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

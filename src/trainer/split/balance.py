"""Where to cut, so that the slowest stage is as fast as possible: pieces are measured, and put together."""

from __future__ import annotations

import copy
import itertools
import logging
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slipway.communicator import Communicator
from slipway.communicator.collectives import broadcast_json, run_on_root
from trainer.config import TrainConfig
from trainer.errors import ConfigError
from trainer.split.cut import places
from trainer.split.pipeline import Pipeline
from trainer.split.schedule import Unit

log = logging.getLogger(__name__)

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


def balance(pieces: Sequence[Piece], stages: int, *, fits: Callable[[int, Sequence[Piece]], bool]) -> list[int]:
    """Return with which of ``pieces`` stages begin, so that the slowest stage is as fast as possible.

    Args:
        pieces: in their order.
        stages: number of them.
        fits: whether the device of a stage, of that number, holds these pieces.

    Raises:
        ConfigError: if there are too few pieces, or they fit no devices.
    """
    if len(pieces) < stages:
        raise ConfigError(f"--split auto: the model can be cut into {len(pieces)} piece(s), and not {stages} stages.")
    best: dict[tuple[int, int], tuple[float, list[int]]] = {(0, 0): (0.0, [])}
    for stage, end in itertools.product(range(1, stages + 1), range(len(pieces) + 1)):
        options = [
            (max(before[0], seconds_of(pieces[begin:end])), [*before[1], begin])
            for begin in range(end)
            if (before := best.get((stage - 1, begin))) and fits(stage - 1, pieces[begin:end])
        ]
        if options:
            best[stage, end] = min(options)
    if (stages, len(pieces)) not in best:
        raise ConfigError(f"--split auto: {stages} stages do not fit the memory of their devices: take more of them.")
    return best[stages, len(pieces)][1]


def seconds_of(pieces: Sequence[Piece]) -> float:
    """Return how long ``pieces`` take one after the other."""
    return sum(piece.seconds for piece in pieces)


COPIES = 4
"""Of the parameters: themselves, gradients, and at most two moments of an optimiser."""


def choose_cuts(model: nn.Module, images: Tensor, devices: Sequence[torch.device], comm: Communicator) -> list[str]:
    """Return before which submodules to cut ``model`` for ``devices``: rank 0 measures, and tells the others.

    Args:
        model: maps images to logits.
        images: floats of a micro-batch [n, c, h, w].
        devices: of the stages; of one kind.
        comm: of this rank.

    Raises:
        ConfigError: on all ranks, if it cannot be cut into so many stages.
    """

    def fits(stage: int, pieces: Sequence[Piece]) -> bool:
        if devices[stage].type != "cuda":
            return True
        kept = len(devices) - stage  # micro-batches, of 1F1B
        needed = sum(COPIES * piece.parameters + kept * piece.activations for piece in pieces)
        return needed < torch.cuda.mem_get_info(devices[stage])[1]

    def choose() -> list[str]:
        pieces = measure(model, images, device=devices[0])
        begins = balance(pieces, len(devices), fits=fits)
        for stage, (begin, end) in enumerate(itertools.pairwise([*begins, len(pieces)])):
            own = pieces[begin:end]
            log.info(
                "stage %d on %s, from %s: %.1f ms a micro-batch, parameters %.1f MB, activations %.1f MB",
                stage,
                devices[stage],
                own[0].name or "the beginning",
                1e3 * seconds_of(own),
                sum(piece.parameters for piece in own) / 1e6,
                sum(piece.activations for piece in own) / 1e6,
            )
        return [pieces[begin].name for begin in begins[1:]]

    found: list[str] = broadcast_json(comm, run_on_root(comm, choose))
    return found


def images_of_a_micro_batch(train: TrainConfig, shape: tuple[int, int, int], *, ranks: int) -> Tensor:
    """Return black images as many as a micro-batch has: uint8 [n, c, h, w]."""
    of_rank = train.batch_size_per_rank or train.batch_size // ranks
    return torch.zeros(max(2, of_rank // train.grad_accum_steps), *shape, dtype=torch.uint8)


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

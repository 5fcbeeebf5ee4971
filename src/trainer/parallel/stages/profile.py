"""What each piece of a model takes, measured: the time of its passes, its parameters, what it keeps."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.model.memory_meter import Meter
from trainer.parallel.stages.cut import cut, places

ROUNDS = 5
"""Measured passes of each piece, of which the fastest counts; one more goes before them."""
CPU = torch.device("cpu")


class Piece(NamedTuple):
    """A part of a model between two places where it can be cut, and what it takes."""

    name: str
    """The submodule with which it begins; "" for the first piece."""
    forward: float
    """Seconds of a forward pass of a micro-batch, the fastest that was measured."""
    backward: float
    """Of a backward pass."""
    parameters: int
    """Bytes of parameters and buffers."""
    activations: int
    """Bytes that a micro-batch keeps for its backward pass, without the parameters."""

    @property
    def seconds(self) -> float:
        """Of both passes."""
        return self.forward + self.backward


def profile(
    model: nn.Module, images: Tensor, *, device: torch.device, forward: Callable[[], AbstractContextManager[None]]
) -> list[Piece]:
    """Return the pieces of ``model``, measured on ``device``; the model itself stays as it is.

    Each round measures all pieces, one after the other: what else the machine does for a while then slows one round of
    many pieces, and not all rounds of one. As it makes no pass faster, the fastest one counts.

    Args:
        model: maps images to logits; as a whole it need not fit ``device``.
        images: floats of a micro-batch [n, c, h, w]; their values do not matter.
        device: on which every piece is measured.
        forward: context of a forward pass.
    """
    names = ["", *places(model)]
    pieces = cut(copy.deepcopy(model), names[1:])
    activations = []
    times: list[list[tuple[float, float]]] = [[] for _ in pieces]
    for number in range(1 + ROUNDS):
        entering = _noise_like(images)
        for place, piece in enumerate(pieces):
            piece.to(device)
            entering = entering.to(device).requires_grad_(place > 0)
            if number == 0:
                activations.append(_kept(piece, entering, forward))
            entering, went_forward, went_backward = _timed(piece, entering, forward)
            if number:
                times[place].append((went_forward, went_backward))
            piece.to(CPU)
    return [
        Piece(
            name,
            min(went_forward for went_forward, _ in measured),
            min(went_backward for _, went_backward in measured),
            sum(tensor.nbytes for tensor in (*piece.parameters(), *piece.buffers())),
            kept,
        )
        for name, piece, measured, kept in zip(names, pieces, times, activations, strict=True)
    ]


def _noise_like(images: Tensor) -> Tensor:
    """Return random images, as GPUs are faster with zeros; torch's own generator stays as it is."""
    return torch.empty_like(images).normal_(generator=torch.Generator(images.device).manual_seed(0))


def _kept(piece: nn.Module, entering: Tensor, forward: Callable[[], AbstractContextManager[None]]) -> int:
    """Return the bytes that ``piece`` keeps for its backward pass."""
    received = entering.clone()  # a piece may change in place what it is given
    with Meter([*piece.parameters(), *piece.buffers()]) as meter, forward():
        leaving = piece(received)
    assert leaving is not None  # alive until here
    return meter.live[0]


def _timed(
    piece: nn.Module, entering: Tensor, forward: Callable[[], AbstractContextManager[None]]
) -> tuple[Tensor, float, float]:
    """Return what leaves ``piece``, and the seconds of its forward and of its backward pass.

    What a stage does not do between two of its pieces is left out: to copy what enters, and to make a gradient. The
    gradients of parameters add up, as in all micro-batches of a step but the first.
    """
    received = entering.clone()
    start = _now(entering.device)
    with forward():
        leaving = piece(received)
    went_forward = _now(entering.device) - start
    gradient = leaving.detach().clone()
    start = _now(entering.device)
    if leaving.requires_grad:  # the first piece may have no parameters
        leaving.backward(gradient)
    return leaving.detach(), went_forward, _now(entering.device) - start


def _now(device: torch.device) -> float:
    """Return the time at which ``device`` has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

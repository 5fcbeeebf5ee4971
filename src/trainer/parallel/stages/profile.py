"""Measurement of a model's pieces: time of their passes, bytes of parameters and of activations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.model.memory_meter import Meter
from trainer.parallel.device import CPU, now
from trainer.parallel.stages.cut import cut, places

ROUNDS = 5
"""Measured passes per piece, of which the fastest counts; an unmeasured warm-up pass precedes them."""


class Piece(NamedTuple):
    """A part of a model between two places where it can be cut, with its time and memory."""

    name: str
    """The submodule with which it begins; "" for the first piece."""
    forward: float
    """Seconds of the fastest forward pass of a micro-batch."""
    backward: float
    """Seconds of the fastest backward pass."""
    parameters: int
    """Bytes of parameters and buffers."""
    activations: int
    """Bytes that a micro-batch keeps for its backward pass, without the parameters."""

    @property
    def seconds(self) -> float:
        """Seconds of both passes."""
        return self.forward + self.backward


def profile(
    model: nn.Module, images: Tensor, *, device: torch.device, forward: Callable[[], AbstractContextManager[None]]
) -> list[Piece]:
    """Return the pieces of ``model``, measured on ``device``; the model is not changed.

    Each round measures all pieces, one after the other, so that other load on the machine slows one round of many
    pieces rather than all rounds of one piece. Such load never makes a pass faster, so the fastest pass counts.

    Args:
        model: maps images to logits; the whole model need not fit on ``device``.
        images: floats of a micro-batch [n, c, h, w]; their values do not matter.
        device: where each piece is measured.
        forward: returns the context of a forward pass.
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
            entering, forward_seconds, backward_seconds = _timed(piece, entering, forward)
            if number:
                times[place].append((forward_seconds, backward_seconds))
            piece.to(CPU)
    return [
        Piece(
            name,
            min(forward_seconds for forward_seconds, _ in measured),
            min(backward_seconds for _, backward_seconds in measured),
            sum(tensor.nbytes for tensor in (*piece.parameters(), *piece.buffers())),
            kept,
        )
        for name, piece, measured, kept in zip(names, pieces, times, activations, strict=True)
    ]


def _noise_like(images: Tensor) -> Tensor:
    """Return random images, because GPUs are faster with zeros; torch's global generator is not changed."""
    return torch.empty_like(images).normal_(generator=torch.Generator(images.device).manual_seed(0))


def _kept(piece: nn.Module, entering: Tensor, forward: Callable[[], AbstractContextManager[None]]) -> int:
    """Return the bytes that ``piece`` keeps for its backward pass."""
    received = entering.clone()  # a piece may change its input in place
    with Meter([*piece.parameters(), *piece.buffers()]) as meter, forward():
        leaving = piece(received)
    assert leaving is not None  # alive until here
    return meter.live[0]


def _timed(
    piece: nn.Module, entering: Tensor, forward: Callable[[], AbstractContextManager[None]]
) -> tuple[Tensor, float, float]:
    """Return the output of ``piece``, and the seconds of its forward and of its backward pass.

    The times leave out the input's copy and the creation of a gradient, because a stage does neither between its
    pieces. The gradients of parameters add up, as in all micro-batches of a step except the first.
    """
    received = entering.clone()
    start = now(entering.device)
    with forward():
        leaving = piece(received)
    forward_seconds = now(entering.device) - start
    gradient = leaving.detach().clone()
    start = now(entering.device)
    if leaving.requires_grad:  # the first piece may have no parameters
        leaving.backward(gradient)
    return leaving.detach(), forward_seconds, now(entering.device) - start

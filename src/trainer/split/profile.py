"""What each piece of a model takes, measured: the time of its passes, its parameters, what it keeps."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trainer.meter import Meter
from trainer.split.cut import cut, places

ROUNDS = 5
"""Measured passes, of which the median counts; one more goes before them."""
CPU = torch.device("cpu")


class Piece(NamedTuple):
    """A part of a model between two places where it can be cut, and what it takes."""

    name: str
    """The submodule with which it begins; "" for the first piece."""
    forward: float
    """Seconds of a forward pass of a micro-batch."""
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
    """Return the pieces of ``model``, measured on ``device`` one after the other; the model itself stays as it is.

    Args:
        model: maps images to logits; as a whole it need not fit ``device``.
        images: floats of a micro-batch [n, c, h, w].
        device: on which every piece is measured.
        forward: context of a forward pass.
    """
    names = places(model)
    found = []
    entering = images
    for name, piece in zip(["", *names], cut(copy.deepcopy(model), names), strict=True):
        piece.to(device)
        entering = entering.detach().to(device).requires_grad_(bool(name))
        forwards, backwards = zip(*[_timed(piece, entering, forward) for _ in range(ROUNDS + 1)], strict=True)
        received = entering.clone()  # a piece may change in place what it is given
        with Meter([*piece.parameters(), *piece.buffers()]) as meter, forward():
            leaving = piece(received)
        found.append(
            Piece(
                name,
                statistics.median(forwards[1:]),
                statistics.median(backwards[1:]),
                sum(tensor.nbytes for tensor in (*piece.parameters(), *piece.buffers())),
                meter.live[0],
            )
        )
        piece.to(CPU)
        entering = leaving
    return found


def _timed(
    piece: nn.Module, entering: Tensor, forward: Callable[[], AbstractContextManager[None]]
) -> tuple[float, float]:
    """Return the seconds of a forward and of a backward pass."""
    received = entering.clone()
    start = _now(entering.device)
    with forward():
        leaving = piece(received)
    middle = _now(entering.device)
    if leaving.requires_grad:  # the first piece may have no parameters
        leaving.backward(torch.ones_like(leaving))
    return middle - start, _now(entering.device) - middle


def _now(device: torch.device) -> float:
    """Return the time at which ``device`` has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()

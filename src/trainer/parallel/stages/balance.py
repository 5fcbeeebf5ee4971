"""Choice of the cuts for ``--split auto`` that makes the slowest stage as fast as possible."""

from __future__ import annotations

import csv
import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slipway.base.files import replacing
from slipway.dist.collectives import broadcast_json, run_on_root
from slipway.dist.communicator import Communicator
from trainer.config.errors import ConfigError
from trainer.config.settings import Config
from trainer.optim.amp import autocast
from trainer.optim.optimizers import state_copies
from trainer.parallel.stages.profile import Piece, profile
from trainer.parallel.stages.schedule import SCHEDULES, live_micros

log = logging.getLogger(__name__)


class Choice(NamedTuple):
    """Cuts of a model, with the measurements they are based on."""

    cuts: list[str]
    """Submodules with which the stages begin, except for the first stage."""
    pieces: list[Piece]
    """Measured pieces; [] if nothing was measured."""

    def stages(self) -> list[list[Piece]]:
        """Return the pieces of each stage."""
        begins = [number for number, piece in enumerate(self.pieces) if piece.name in self.cuts]
        return [self.pieces[begin:end] for begin, end in itertools.pairwise([0, *begins, len(self.pieces)])]

    def write(self, path: Path) -> None:
        """Write the pieces and their stages as a CSV table to ``path``."""
        with replacing(path) as new, new.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["stage", "begins_with", "forward_ms", "backward_ms", "parameter_bytes", "activation_bytes"])
            for number, stage in enumerate(self.stages()):
                for piece in stage:
                    times = (f"{1e3 * seconds:.3f}" for seconds in (piece.forward, piece.backward))
                    table.writerow([number, piece.name, *times, piece.parameters, piece.activations])


def choose(
    model: nn.Module, images: Tensor, devices: Sequence[torch.device], config: Config, comm: Communicator
) -> Choice:
    """Choose the submodules before which to cut ``model`` for ``devices``: rank 0 measures and broadcasts the result.

    Args:
        model: on the CPU; it maps images to logits.
        images: floats of a micro-batch [n, c, h, w], on the CPU.
        devices: of the stages; rank 0 measures on the first one.
        config: the experiment.
        comm: this rank's communicator.

    Raises:
        ConfigError: on all ranks, if the model cannot be cut into that many stages.
    """
    units = SCHEDULES[config.model.pipeline](len(devices), config.train.grad_accum_steps)
    copies = 2 + state_copies(config.optim) + bool(config.model.ema_decay)  # 2: parameters and gradients

    def fits(stage: int, pieces: Sequence[Piece]) -> bool:
        device = devices[stage]
        if device.type != "cuda":
            return True
        live = live_micros(units, stage)
        needed = sum(copies * piece.parameters + live * piece.activations for piece in pieces)
        return needed < torch.cuda.mem_get_info(device)[1]

    def measure() -> Choice:
        pieces = profile(model, images, device=devices[0], forward=lambda: autocast(config.train.amp, devices[0]))
        begins = balance(pieces, len(devices), fits=fits)
        return Choice([pieces[begin].name for begin in begins[1:]], pieces)

    cuts, pieces = broadcast_json(comm, run_on_root(comm, measure))
    choice = Choice(cuts, [Piece(*piece) for piece in pieces])
    for number, (stage, device) in enumerate(zip(choice.stages(), devices, strict=True)):
        log.info(
            "stage %d on %s, from %s: %.1f ms per micro-batch, parameters %.1f MB, activations %.1f MB",
            *(number, device, stage[0].name or "the beginning", 1e3 * seconds_of(stage)),
            *(sum(piece.parameters for piece in stage) / 1e6, sum(piece.activations for piece in stage) / 1e6),
        )
    return choice


def balance(pieces: Sequence[Piece], stages: int, *, fits: Callable[[int, Sequence[Piece]], bool]) -> list[int]:
    """Return the positions of the pieces with which stages begin, so that the slowest stage is as fast as possible.

    Args:
        pieces: in the model's order.
        stages: number of stages.
        fits: whether the device of the stage with this number can hold these pieces.

    Raises:
        ConfigError: if there are too few pieces, or the stages do not fit their devices.
    """
    if len(pieces) < stages:
        raise ConfigError(
            "bad-split", f"--split auto: the model can be cut into only {len(pieces)} piece(s), not {stages} stages."
        )
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
        raise ConfigError(
            "out-of-memory", f"--split auto: {stages} stages do not fit the memory of their devices: use more devices."
        )
    return best[stages, len(pieces)][1]


def seconds_of(pieces: Sequence[Piece]) -> float:
    """Return the seconds that ``pieces`` take one after the other."""
    return sum(piece.seconds for piece in pieces)

"""Steps of torch's fused optimizers with GradScaler, some of them skipped, on any device, and their references."""

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from trainer.optim.fused_sgd import FusedSGD

STEPS = 5
SKIPPED = {"none": (), "1": (1,), "2": (2,), "1 and 2": (1, 2), "3": (3,)}
"""Steps, from 1, with an infinite gradient."""
TOLERANCE = 2e-6
"""Largest difference to foreach, relative to weights and state of about 1: sixteen roundings of float32.

The kernels fuse and order operations differently, once every one or two steps. Momentum that starts from zeros with
dampening, or from random memory, differs by 0.01 and more.
"""

Build = Callable[[Iterable[nn.Parameter]], Optimizer]

CASES: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "sgd": (SGD, {}),
    "sgd, weight decay": (SGD, {"weight_decay": 0.1}),
    "sgd, momentum": (SGD, {"momentum": 0.9}),
    "sgd, momentum, weight decay": (SGD, {"momentum": 0.9, "weight_decay": 0.1}),
    "sgd, momentum, dampening": (SGD, {"momentum": 0.9, "dampening": 0.5}),
    "sgd, momentum, dampening, maximize": (SGD, {"momentum": 0.9, "dampening": 0.5, "maximize": True}),
    "sgd, nesterov": (SGD, {"momentum": 0.9, "nesterov": True}),
    "sgd, nesterov, weight decay": (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "adam": (Adam, {}),
    "adam, weight decay": (Adam, {"weight_decay": 0.1}),
    "adam, amsgrad": (Adam, {"amsgrad": True}),
    "adamw": (AdamW, {"weight_decay": 0.1}),
    "adamw, amsgrad": (AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    "adagrad": (Adagrad, {"weight_decay": 0.1, "lr_decay": 0.1}),
}
"""Optimizers that have a fused implementation in torch, with the arguments on which their kernels branch."""


def fused_optimizers() -> set[type[Optimizer]]:
    """Return the optimizers of the installed torch that accept ``fused``."""
    classes = {value for value in vars(torch.optim).values() if isinstance(value, type)}
    return {cls for cls in classes if "fused" in inspect.signature(cls).parameters}


def torchs(name: str, implementation: str) -> Build:
    """Return a builder of a case's torch optimizer with ``implementation`` "fused" or "foreach"."""
    cls, arguments = CASES[name]
    return lambda parameters: cls(parameters, lr=0.1, **arguments, **{implementation: True})


def ours(name: str) -> Build:
    """Return a builder of a case's fused optimizer in the trainer."""
    cls, arguments = CASES[name]
    return lambda parameters: (FusedSGD if cls is SGD else cls)(parameters, lr=0.1, **arguments, fused=True)


@cache
def normal(seed: int) -> tuple[Tensor, ...]:
    """Return float32 tensors of about 1: an NHWC kernel, one larger than a CUDA kernel's block, and a small one."""
    generator = torch.Generator().manual_seed(seed)
    kernel, *others = (torch.randn(shape, generator=generator) for shape in ((8, 3, 3, 3), (70_001,), (5,)))
    return kernel.contiguous(memory_format=torch.channels_last), *others


def parameters_on(device: torch.device) -> list[nn.Parameter]:
    """Return new parameters on ``device``, with the same values in each call."""
    return [nn.Parameter(value.to(device, copy=True)) for value in normal(0)]


def steps(
    build: Build,
    device: torch.device,
    *,
    skipped: Collection[int] = (),
    left_out: Collection[int] = (),
    late: int = 1,
    unscale: bool = False,
) -> dict[str, Tensor]:
    """Take STEPS steps, with the same gradients in each call, and return weights and state by name on the CPU.

    Args:
        build: builds the optimizer.
        device: device of the parameters.
        skipped: steps, from 1, with an infinite gradient, which GradScaler must skip.
        left_out: steps that are not executed at all.
        late: step of the last parameter's first gradient.
        unscale: call ``unscale_`` before each step, as clipping does.
    """
    parameters = parameters_on(device)
    optimizer = build(parameters)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)  # powers of two: scaling does not round
    for step in range(1, STEPS + 1):
        if step in left_out:
            continue
        used = parameters if step >= late else parameters[:-1]
        losses = [(value * factor.to(device)).sum() for value, factor in zip(used, normal(step), strict=False)]
        scaler.scale(torch.stack(losses).sum()).backward()
        if step in skipped:
            used[1].grad[-1] = torch.inf
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    found = {f"weight {number}": value.detach().cpu() for number, value in enumerate(parameters)}
    for number, parameter in enumerate(parameters):
        found |= {f"{key} {number}": value.cpu() for key, value in optimizer.state.get(parameter, {}).items()}
    return found


def largest_difference(found: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """Return the largest difference of two results of ``steps``, relative to values above 1; NaN if one has NaN.

    Raises:
        KeyError: if their names differ.
    """
    if found.keys() != expected.keys():
        raise KeyError(*sorted(found.keys() ^ expected.keys()))
    scaled = [(found[name] - value).abs().div(value.abs().clamp(min=1)).max() for name, value in expected.items()]
    return float(torch.stack(scaled).max())


def are_equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Return whether two results of ``steps`` have the same names and the same bits."""
    return found.keys() == expected.keys() and all(
        value.numpy().tobytes() == found[name].numpy().tobytes() for name, value in expected.items()
    )


class Row(NamedTuple):
    """Largest differences of fused optimizers to ``foreach=True``, after the same steps."""

    case: str
    skipped: str
    torch: float
    """torch's fused optimizer."""
    trainer: float
    """The trainer's fused optimizer."""


def rows(device: torch.device) -> Iterator[Row]:
    """Yield the differences of each optimizer on ``device`` for each set of skipped steps."""
    for name in CASES:
        for label, skipped in SKIPPED.items():
            expected = steps(torchs(name, "foreach"), device, skipped=skipped)
            found = (steps(build, device, skipped=skipped) for build in (torchs(name, "fused"), ours(name)))
            yield Row(name, label, *(largest_difference(result, expected) for result in found))


def is_faulty_in_torch(row: Row) -> bool:
    """Return whether torch's fused optimizer is known to be wrong in this row, which is why FusedSGD exists."""
    return bool(CASES[row.case][1].get("momentum")) and 1 in SKIPPED[row.skipped]


@contextmanager
def unwritten_memory_is_nan() -> Iterator[None]:
    """Make torch fill new tensors with NaN, as its deterministic mode does."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)

"""Gradient clipping of models whose parameters are DTensors on several meshes; torch's function refuses these."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from slipway.checkpoint.shards import is_sharded, local_part


@torch.no_grad()
def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,  # noqa: FBT001, FBT002 -- torch's signature
    foreach: bool | None = None,  # noqa: FBT001 -- torch's signature
) -> Tensor:
    """Clip gradients as ``torch.nn.utils.clip_grad_norm_`` does, also if parameters are DTensors on several meshes.

    ::

        loss.backward()
        slipway.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    torch's function raises an error if only some layers are tensor-parallel, or if some parameters are not sharded.
    This one is exact: it computes the norm of each mesh's gradients, and then the norm of these norms. It works for any
    model, also if a rank holds no element of a gradient. Gradients that are not DTensors must be equal on all ranks, as
    under DistributedDataParallel.

    Args:
        parameters: a tensor or tensors with gradients; those without are skipped. The same on all ranks.
        max_norm: maximum norm of all gradients together.
        norm_type: order of the norm, above 0; ``float("inf")`` for the largest absolute value.
        error_if_nonfinite: whether to raise an error if the norm is nan or inf, before gradients are changed.
        foreach: whether to use torch's foreach implementation. Default: if the device supports it.

    Returns:
        Tensor: the norm of all gradients before they were clipped, not sharded: a scalar.

    Raises:
        RuntimeError: if the norm is nan or inf and ``error_if_nonfinite`` is True.
    """
    by_layout: dict[Any, list[Tensor]] = {}
    for parameter in [parameters] if isinstance(parameters, Tensor) else parameters:
        if (gradient := parameter.grad) is not None:
            by_layout.setdefault(_layout(gradient), []).append(parameter)
    norms = [
        _norm([each.grad for each in group if each.grad is not None], norm_type, foreach=foreach)
        for group in by_layout.values()
    ]
    total = get_total_norm(norms, norm_type, error_if_nonfinite, foreach)
    for group in by_layout.values():
        clip_grads_with_norm_(group, max_norm, total, foreach)
    return total


def _layout(gradient: Any) -> object:
    """Return the mesh and the placements of a DTensor; None for another tensor."""
    return (gradient.device_mesh, gradient.placements) if is_sharded(gradient) else None


def _norm(gradients: Sequence[Tensor], norm_type: float, *, foreach: bool | None) -> Tensor:
    """Return the norm of gradients with equal layouts, on all ranks.

    The norm of an empty part is 0; torch raises an error for its infinity norm.
    """
    layout: Any = _layout(gradients[0])
    if layout is None:
        return get_total_norm(gradients, norm_type, foreach=foreach)
    from torch.distributed.tensor import DTensor, Partial, Replicate  # noqa: PLC0415 -- takes seconds

    mesh, placements = layout
    placements = [Replicate() if each.is_partial() else each for each in placements]
    parts = [local_part(each.redistribute(placements=placements)) for each in gradients]  # type: ignore[attr-defined]
    own = get_total_norm([part for part in parts if part.numel()], norm_type, foreach=foreach)
    own = own.to(mesh.device_type, functools.reduce(torch.promote_types, [part.dtype for part in parts]))
    is_largest = math.isinf(norm_type)
    sums = [each if each.is_replicate() else Partial("max" if is_largest else "sum") for each in placements]
    total: Tensor = DTensor.from_local(own if is_largest else own**norm_type, mesh, sums).full_tensor()
    return total if is_largest else total ** (1 / norm_type)

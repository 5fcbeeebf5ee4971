"""Check that ranks that hold the same part of a sharded model hold the same values: only one of them saves it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torch import nn

from slipway.base.errors import SessionError
from slipway.checkpoint.shards import is_sharded, local_box, local_part
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator
from slipway.dist.compare_ranks import checksum


def require_equal_replicas(models: Mapping[str, nn.Module], comm: Communicator) -> None:
    """Compare the parts of the DTensors of ``models``, by name; all ranks must call this.

    Raises:
        SessionError: on every rank, if two ranks hold the same part of a tensor with different values.
    """
    own = [
        [f"{model} {name}", *box, checksum(local_part(tensor))]
        for model, module in models.items()
        for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers())
        if is_sharded(tensor) and _has_replicas(tensor, comm.world.size) and (box := local_box(tensor))
    ]
    first: dict[str, tuple[int, object]] = {}
    for rank, parts in enumerate(all_gather_json(comm, own)):
        for name, offset, size, found in parts:
            other, expected = first.setdefault(f"{name} {offset} {size}", (rank, found))
            if found != expected:
                error = SessionError(
                    "unequal-replicas",
                    f"{name}: ranks {other} and {rank} hold the same part of it with different values. fully_shard "
                    "does not broadcast weights: call torch.manual_seed(0) before the model is created.",
                )
                error.raised_on_all_ranks = True
                raise error


def _has_replicas(tensor: Any, ranks: int) -> bool:
    """Return whether several of so many ranks may hold the same part of a DTensor."""
    mesh = tensor.device_mesh
    copies = [
        size for size, placement in zip(mesh.mesh.shape, tensor.placements, strict=True) if not placement.is_shard()
    ]
    return mesh.size() < ranks or any(size > 1 for size in copies)

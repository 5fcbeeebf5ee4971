"""Shards: the boxes of DTensors that the ranks hold, and which rank saves each of them.

A rank holds one box of each DTensor: its elements from ``offset`` on, ``size`` along each dimension. Replicas hold
equal boxes, of which one rank saves one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator

Place = tuple[str, str]
"""A tensor of a checkpoint: component and name."""


class Box(NamedTuple):
    """A box of a tensor's elements."""

    offset: tuple[int, ...]
    """The box's first index along each dimension of the whole tensor."""
    size: tuple[int, ...]
    """The box's length along each dimension."""

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.size)

    def overlap(self, other: Box) -> Box | None:
        """Return the box that both boxes contain, or None."""
        begins = [*map(max, self.offset, other.offset)]
        ends = [*map(min, self._ends(), other._ends())]
        if any(begin >= end for begin, end in zip(begins, ends, strict=True)):
            return None
        return Box(tuple(begins), tuple(end - begin for begin, end in zip(begins, ends, strict=True)))

    def within(self, outer: Box) -> tuple[slice, ...]:
        """Return the index of this box in a tensor that holds ``outer``."""
        return tuple(
            slice(begin - base, begin - base + length)
            for begin, base, length in zip(self.offset, outer.offset, self.size, strict=True)
        )

    def _ends(self) -> Iterable[int]:
        return itertools.starmap(int.__add__, zip(self.offset, self.size, strict=True))


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all elements of a tensor of this shape."""
    return Box((0,) * len(shape), tuple(shape))


def is_sharded(value: object) -> bool:
    """Return whether ``value`` is a DTensor; importing that class could take seconds."""
    return hasattr(value, "full_tensor") and hasattr(value, "placements")


def without_shards(tensors: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Return ``tensors``, by component and name, without DTensors and without components of DTensors only."""
    kept = {
        component: {name: tensor for name, tensor in named.items() if not is_sharded(tensor)}
        for component, named in tensors.items()
    }
    return {component: named for component, named in kept.items() if named}


def local_box(tensor: Any) -> Box | None:
    """Return the box of the DTensor ``tensor`` that this rank holds; None if it holds no element."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset  # noqa: PLC0415 -- takes seconds

    if tensor.device_mesh.get_coordinate() is None:
        return None  # this rank is not in the tensor's mesh
    size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Box(tuple(offset), tuple(size)) if math.prod(size) else None


def local_part(tensor: Any) -> Tensor:
    """Return this rank's part of the DTensor ``tensor``, which shares its memory."""
    found: Tensor = tensor.to_local().detach()
    return found


def sharded_like(like: Any, local: Tensor) -> Tensor:
    """Return a DTensor with the layout of the DTensor ``like``, of which this rank holds ``local``."""
    found: Tensor = torch.empty_like(like.detach(), dtype=local.dtype)
    local_part(found).copy_(local)
    return found


def uncovered(shape: Sequence[int], boxes: Sequence[Box]) -> str:
    """Return why ``boxes`` do not contain each element of a tensor of this shape exactly once; "" if they do."""
    outer = whole(shape)
    if any(len(box.offset) != len(shape) or box.overlap(outer) != box for box in boxes):
        return "a shard lies outside of the tensor"
    cuts = [
        sorted({0, length, *(box.offset[dim] for box in boxes), *(box.offset[dim] + box.size[dim] for box in boxes)})
        for dim, length in enumerate(shape)
    ]
    places = [{cut: number for number, cut in enumerate(own)} for own in cuts]
    held = np.zeros([len(own) - 1 for own in cuts], dtype=np.int64)  # by how many boxes, for each cell of the grid
    for box in boxes:
        spans = zip(places, box.offset, box.size, strict=True)
        held[tuple(slice(place[begin], place[begin + length]) for place, begin, length in spans)] += 1
    return "" if (held == 1).all() else "two shards overlap" if (held > 1).any() else "a shard is missing"


class Ownership:
    """Which of the boxes that a rank holds it saves. The ranks agree on it once for each layout."""

    def __init__(self, comm: Communicator) -> None:
        """Agree over the ranks of ``comm``: the mesh of a tensor may not contain all ranks that hold a box."""
        self._comm = comm
        self._layouts: list[str] = []
        self._owned: set[tuple[Place, Box]] = set()

    def owned(self, held: Mapping[Place, tuple[Box, int]]) -> set[tuple[Place, Box]]:
        """Return the boxes that this rank saves; all ranks must call this.

        Args:
            held: this rank's box of each tensor, and the box's bytes.
        """
        layout = sorted([*place, *box, nbytes] for place, (box, nbytes) in held.items())
        digest = hashlib.sha256(json.dumps(layout).encode()).hexdigest()
        layouts = all_gather_json(self._comm, digest)
        if layouts != self._layouts:
            self._layouts = layouts
            self._owned = divide(all_gather_json(self._comm, layout))[self._comm.world.rank]
        return self._owned


def divide(layouts: Sequence[Sequence[Sequence[Any]]]) -> list[set[tuple[Place, Box]]]:
    """Return the boxes that each rank saves: each box once, and about the same bytes on each rank that can choose.

    Args:
        layouts: by rank, the boxes that it holds: component, name, offset, size, bytes.
    """
    holders: dict[tuple[Place, Box], list[int]] = {}
    nbytes: dict[tuple[Place, Box], int] = {}
    for rank, layout in enumerate(layouts):
        for component, name, offset, size, length in layout:
            box = (component, name), Box(tuple(offset), tuple(size))
            holders.setdefault(box, []).append(rank)
            nbytes[box] = length
    owned: list[set[tuple[Place, Box]]] = [set() for _ in layouts]
    loads = [0] * len(layouts)
    for box in sorted(holders, key=lambda box: (len(holders[box]), -nbytes[box], box)):
        rank = min(holders[box], key=lambda rank: (loads[rank], rank))
        owned[rank].add(box)
        loads[rank] += nbytes[box]
    return owned

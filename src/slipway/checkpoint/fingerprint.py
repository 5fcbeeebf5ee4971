"""Short digests of states: whether an object is the same on all ranks, or still as it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from slipway.checkpoint.stateful import split
from slipway.dist.collectives import as_bytes
from slipway.dist.replicas import checksum

ON_DEVICE = 1 << 20
"""Bytes from which on a tensor of a GPU is summed there instead of copied to the CPU."""


class Fingerprint(NamedTuple):
    """Of a state."""

    digest: str
    """Equal for states that are equal bit by bit, on the same kind of device."""
    size: int
    """Bytes that the state takes in a checkpoint."""


def fingerprint(state: Mapping[Any, Any], *, of_tensors: bool = True, restored_in_place: bool = False) -> Fingerprint:
    """Return the fingerprint of a state_dict.

    Args:
        state: of tensors and whatever else a checkpoint holds.
        of_tensors: whether the elements of its tensors count; else only their names, shapes and dtypes do.
        restored_in_place: see ``split``.

    Raises:
        Exception: if a checkpoint cannot hold it, as ``split`` does.
    """
    tensors, tree = split(state, "state", restored_in_place=restored_in_place)
    text = json.dumps([tree, [[name, str(tensor.dtype), [*tensor.shape]] for name, tensor in tensors.items()]]).encode()
    total = hashlib.sha256(text)
    for tensor in tensors.values() if of_tensors else ():
        total.update(_content(tensor))
    return Fingerprint(total.hexdigest(), len(text) + sum(tensor.nbytes for tensor in tensors.values()))


def _content(tensor: Tensor) -> memoryview | bytes:
    if not tensor.is_cpu and tensor.nbytes >= ON_DEVICE:
        return repr(checksum(tensor)).encode()
    return as_bytes(tensor.cpu()).numpy().data

"""Digests of states, to check whether an object is the same on all ranks or unchanged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from slipway.checkpoint.shards import is_sharded, local_part
from slipway.checkpoint.stateful import split
from slipway.dist.collectives import as_bytes
from slipway.dist.compare_ranks import checksum

MIN_CHECKSUM_ON_GPU = 1 << 20
"""Minimum bytes of a GPU tensor for a checksum on the GPU instead of a copy to the CPU."""


class Fingerprint(NamedTuple):
    """Digest and size of a state."""

    digest: str
    """Equal for states that are equal bit by bit, on the same kind of device."""
    size: int
    """Bytes that the state takes in a checkpoint."""


def fingerprint(
    state: Mapping[Any, Any],
    *,
    with_elements: bool = True,
    with_shards: bool = True,
    restored_in_place: bool = False,
) -> Fingerprint:
    """Return the fingerprint of a state_dict.

    Args:
        state: tensors and anything else that a checkpoint can hold.
        with_elements: whether the digest covers the tensors' elements; otherwise only their names, shapes and dtypes.
        with_shards: whether it covers this rank's elements of DTensors.
        restored_in_place: see ``split``.

    Raises:
        Exception: as ``split`` does, if a checkpoint cannot hold the state.
    """
    tensors, tree = split(state, "state", restored_in_place=restored_in_place)
    text = json.dumps([tree, [[name, str(tensor.dtype), [*tensor.shape]] for name, tensor in tensors.items()]]).encode()
    total = hashlib.sha256(text)
    for tensor in tensors.values() if with_elements else ():
        if with_shards or not is_sharded(tensor):
            total.update(_content(local_part(tensor) if is_sharded(tensor) else tensor))
    return Fingerprint(total.hexdigest(), len(text) + sum(tensor.nbytes for tensor in tensors.values()))


def _content(tensor: Tensor) -> memoryview | bytes:
    if not tensor.is_cpu and tensor.nbytes >= MIN_CHECKSUM_ON_GPU:
        return repr(checksum(tensor)).encode()
    return as_bytes(tensor.cpu()).numpy().data

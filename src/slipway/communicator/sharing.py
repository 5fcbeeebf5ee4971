"""What rank 0 alone does or decides, shared with all ranks: as plain JSON and tensors, never as pickled objects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from slipway.errors import SlipwayError, from_json, to_json

if TYPE_CHECKING:
    from slipway.communicator import Communicator

T = TypeVar("T")


def share_json(ranks: Communicator, value: Any = None) -> Any:
    """Return rank 0's ``value`` on every rank; the others' is ignored."""
    text = json.dumps(value).encode() if ranks.world.rank == 0 else b""
    length = torch.tensor([len(text)], dtype=torch.int64, device=ranks.device)
    ranks.broadcast([length])
    buffer = torch.empty(int(length), dtype=torch.uint8, device=ranks.device)
    if ranks.world.rank == 0:
        buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    ranks.broadcast([buffer])
    return json.loads(bytes(buffer.tolist()))


def gather_json(ranks: Communicator, value: Any) -> list[Any]:
    """Return every rank's ``value``, in the order of the ranks, on every rank.

    Communicators sum but do not gather: each rank adds its bytes into a row of its own. In host memory, so that ranks
    with and without a GPU understand each other.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    rank, size = ranks.world.rank, ranks.world.size
    lengths = torch.zeros(size, dtype=torch.float64)
    lengths[rank] = len(text)
    lengths = ranks.all_reduce_sum(lengths)
    rows = torch.zeros(size, int(lengths.max()))
    rows[rank, : len(text)] = text
    rows = ranks.all_reduce_sum(rows)
    return [json.loads(bytes(row[: int(length)].int().tolist())) for row, length in zip(rows, lengths, strict=True)]


def on_root(ranks: Communicator, action: Callable[[], T]) -> T | None:
    """Run ``action`` on rank 0, while the others wait; return its result there, and None on the others.

    Raises:
        SlipwayError: on every rank, if it raised one or an OSError on rank 0; so that none waits for a rank that is
            gone.
    """
    result: T | None = None
    outcome: dict[str, Any] = {}
    cause: Exception | None = None
    if ranks.world.rank == 0:
        try:
            result = action()
        except (SlipwayError, OSError) as error:
            cause = error
            outcome = {"error": to_json(error)}
    outcome = share_json(ranks, outcome)
    if "error" in outcome:
        failure = from_json(outcome["error"])
        failure.everywhere = True
        raise failure from cause
    return result


def count_alike(ranks: Communicator, key: str, device: torch.device | None = None) -> int:
    """Return how many ranks give the same ``key``; all must call it.

    ``device``: of the message, by default the rank's.
    """
    rank, size = ranks.world.rank, ranks.world.size
    digests = torch.zeros(size, dtype=torch.float64, device=device or ranks.device)
    digests[rank] = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")  # 48 bits: exact in float64
    digests = ranks.all_reduce_sum(digests)
    return int((digests == digests[rank]).sum())

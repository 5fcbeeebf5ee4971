"""What rank 0 alone may do or decide, told to all ranks: as plain JSON and tensors, never as pickled objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from slipway.errors import SlipwayError, from_json, to_json
from trainer.backends import Backend

T = TypeVar("T")


def share_json(backend: Backend, value: Any = None) -> Any:
    """Return rank 0's ``value`` on every rank; the others' is ignored."""
    text = json.dumps(value).encode() if backend.world.rank == 0 else b""
    length = torch.tensor([len(text)], dtype=torch.int64, device=backend.device)
    backend.broadcast([length])
    buffer = torch.empty(int(length), dtype=torch.uint8, device=backend.device)
    if backend.world.rank == 0:
        buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    backend.broadcast([buffer])
    return json.loads(bytes(buffer.tolist()))


def gather_json(backend: Backend, value: Any) -> list[Any]:
    """Return every rank's ``value``, in the order of the ranks, on every rank.

    Backends sum but do not gather: each rank adds its bytes into a row of its own. In host memory, so that ranks with
    and without a GPU understand each other.
    """
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    rank, size = backend.world.rank, backend.world.size
    lengths = torch.zeros(size, dtype=torch.float64)
    lengths[rank] = len(text)
    lengths = backend.total(lengths)
    rows = torch.zeros(size, int(lengths.max()))
    rows[rank, : len(text)] = text
    rows = backend.total(rows)
    return [json.loads(bytes(row[: int(length)].int().tolist())) for row, length in zip(rows, lengths, strict=True)]


def on_root(backend: Backend, action: Callable[[], T]) -> T | None:
    """Run ``action`` on rank 0, while the others wait; return its result there, and None on the others.

    Raises:
        SlipwayError: on every rank, if it raised one or an OSError on rank 0; so that none waits for a rank
            that is gone.
    """
    result: T | None = None
    outcome: dict[str, Any] = {}
    cause: Exception | None = None
    if backend.world.rank == 0:
        try:
            result = action()
        except (SlipwayError, OSError) as error:
            cause = error
            outcome = {"error": to_json(error)}
    outcome = share_json(backend, outcome)
    if "error" in outcome:
        failure = from_json(outcome["error"])
        failure.everywhere = True
        raise failure from cause
    return result

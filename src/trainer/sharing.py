"""What rank 0 alone may do or decide, told to all ranks: as plain JSON and tensors, never as pickled objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from trainer.backends import Backend
from trainer.errors import TrainerError, is_final

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
        TrainerError: on every rank, if it raised a TrainerError or an OSError on rank 0; so that none waits for a rank
            that is gone.
    """
    result: T | None = None
    outcome: dict[str, Any] = {}
    cause: Exception | None = None
    if backend.world.rank == 0:
        try:
            result = action()
        except (TrainerError, OSError) as error:
            cause = error
            code = getattr(error, "exit_code", TrainerError.exit_code)
            outcome = {"error": str(error), "exit_code": code, "final": is_final(error)}
    outcome = share_json(backend, outcome)
    if "error" in outcome:
        failure = TrainerError(outcome["error"])
        failure.exit_code, failure.final, failure.everywhere = outcome["exit_code"], outcome["final"], True
        raise failure from cause
    return result

"""Collective operations on JSON values and actions, built from a Communicator's two tensor operations; no pickle."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from slipway.base.errors import SlipwayError, from_json, to_json
from slipway.dist.communicator import Communicator

T = TypeVar("T")
R = TypeVar("R")

CHUNK = 1 << 24
"""Bytes that ``gather_bytes`` reduces at once."""
WORD = torch.int32.itemsize
"""Bytes are summed as int32 words in which all ranks but one have zeros, because Horovod does not reduce uint8."""


def broadcast_json(comm: Communicator, value: Any) -> Any:
    """Return rank 0's ``value`` on every rank; other ranks' values are ignored. All ranks must call this."""
    text = json.dumps(value).encode() if comm.world.is_root else b""
    length = torch.tensor([len(text)], dtype=torch.int64, device=comm.device)
    comm.broadcast([length])
    buffer = torch.empty(int(length), dtype=torch.uint8, device=comm.device)
    if comm.world.is_root:
        buffer.copy_(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    comm.broadcast([buffer])
    return json.loads(bytes(buffer.tolist()))


def sum_numbers(comm: Communicator, numbers: list[float]) -> list[float]:
    """Return the element-wise sums of ``numbers`` over all ranks, in float64; all ranks must pass the same length."""
    if comm.world.size == 1:
        return numbers
    found: list[float] = comm.all_reduce_sum(torch.tensor(numbers, dtype=torch.float64, device=comm.device)).tolist()
    return found


def all_gather_json(comm: Communicator, value: Any, *, device: torch.device | None = None) -> list[Any]:
    """Return every rank's ``value`` on every rank, in rank order.

    A Communicator has no gather, so each rank writes its bytes to its own row of zeros, and the rows are summed.

    Args:
        comm: communicator of this rank; all ranks must call this.
        value: any value that JSON supports.
        device: device of the messages; by default the rank's. On the CPU, ranks with and without a GPU can communicate.
    """
    if comm.world.size == 1:
        return [value]
    device = device or comm.device
    text = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    rank, size = comm.world.rank, comm.world.size
    lengths = torch.zeros(size, dtype=torch.float64, device=device)
    lengths[rank] = len(text)
    lengths = comm.all_reduce_sum(lengths)
    rows = torch.zeros(size, -(-int(lengths.max()) // WORD), dtype=torch.int32, device=device)
    rows.view(torch.uint8)[rank, : len(text)] = text.to(device)
    rows = comm.all_reduce_sum(rows).view(torch.uint8).cpu()
    return [json.loads(row[: int(length)].numpy().tobytes()) for row, length in zip(rows, lengths, strict=True)]


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the bytes of ``tensor`` as uint8 [n], a view if the tensor is contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def gather_bytes(comm: Communicator, data: bytes) -> list[bytes]:
    """Return every rank's ``data`` on rank 0, in rank order, and an empty list on the other ranks.

    All ranks must call this. Each rank needs up to ``CHUNK`` additional bytes of memory on its device.
    """
    lengths = all_gather_json(comm, len(data))
    total, begin = sum(lengths), sum(lengths[: comm.world.rank])
    end = begin + len(data)
    found = bytearray()
    for start in range(0, total, CHUNK):
        stop = min(start + CHUNK, total)
        first, last = max(begin, start), min(end, stop)
        chunk = torch.zeros(-(-(stop - start) // WORD), dtype=torch.int32)
        if first < last:
            own = torch.frombuffer(bytearray(data[first - begin : last - begin]), dtype=torch.uint8)
            chunk.view(torch.uint8)[first - start : last - start] = own
        chunk = comm.all_reduce_sum(chunk.to(comm.device)).cpu()
        if comm.world.is_root:
            found += chunk.numpy().tobytes()[: stop - start]
    if not comm.world.is_root:
        return []
    ends = itertools.accumulate(lengths)
    return [bytes(memoryview(found)[end - length : end]) for length, end in zip(lengths, ends, strict=True)]


def run_on_root(comm: Communicator, action: Callable[[], T]) -> T | None:
    """Run ``action`` on rank 0 while the other ranks wait; return its result on rank 0 and None on the others.

    Raises:
        Exception: on rank 0, the error that the action raised, or a SlipwayError in place of an OSError. On the other
            ranks, the same error if its class is from ``slipway.base.errors``, else a SlipwayError with its text, exit
            code and ``retryable``, so that no rank waits for a rank that has failed.
    """
    result: T | None = None
    error: Exception | None = None
    if comm.world.is_root:
        try:
            result = action()
        except Exception as caught:  # noqa: BLE001 -- raised again below, after the other ranks have received it
            error = caught
    failure = broadcast_json(comm, error and to_json(error))
    if failure is None:
        return result
    if isinstance(error, SlipwayError):
        error.raised_on_all_ranks = True
    if error and not isinstance(error, OSError):
        raise error
    forwarded = from_json(failure)
    forwarded.raised_on_all_ranks = True
    raise forwarded from error


def raise_on_all_ranks(comm: Communicator, error: Exception | None) -> None:
    """Raise ``error``, or the error of another rank; do nothing if no rank has one. All ranks must call this."""
    raise_first(error, all_gather_json(comm, error and to_json(error)))


def raise_first(own: Exception | None, errors: Sequence[dict[str, Any] | None]) -> None:
    """Raise this rank's error ``own``, or the first of ``errors``, of all ranks as JSON; do nothing without errors."""
    found = next((error for error in errors if error), None)
    if found is None:
        return
    error = own or from_json(found)
    if isinstance(error, SlipwayError):
        error.raised_on_all_ranks = True
    raise error


class RootOnly(Generic[T]):
    """Wrapper, held by all ranks, of an object that exists only on rank 0."""

    def __init__(self, comm: Communicator, make: Callable[[], T]) -> None:
        """Create the object with ``make`` on rank 0 while the other ranks wait; see ``run_on_root``."""
        self._comm = comm
        self.on_root: T | None = run_on_root(comm, make)
        """The object on rank 0, None on the others. Use it directly only if no other rank waits for the outcome."""

    def run(self, action: Callable[[T], R]) -> R | None:
        """Run ``action`` with the object on rank 0 while the other ranks wait; see ``run_on_root``."""
        return run_on_root(self._comm, lambda: action(cast("T", self.on_root)))

    def make(self, action: Callable[[T], R]) -> RootOnly[R]:
        """Return a RootOnly of the result of ``action``, which runs with the object on rank 0."""
        return RootOnly(self._comm, lambda: action(cast("T", self.on_root)))


def count_equal(comm: Communicator, key: str, device: torch.device | None = None) -> int:
    """Return how many ranks pass the same ``key`` as this one. All ranks must call this.

    ``device`` is as for ``all_gather_json``.
    """
    rank, size = comm.world.rank, comm.world.size
    digests = torch.zeros(size, dtype=torch.float64, device=device or comm.device)
    digests[rank] = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6], "big")  # 48 bits: exact in float64
    digests = comm.all_reduce_sum(digests)
    return int((digests == digests[rank]).sum())

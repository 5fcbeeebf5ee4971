"""Copies of tensors from GPUs to host memory. The transfer continues while training does.

``HostCopies.start`` returns only when nothing reads the tensors any more, so training may change them at once, on any
stream and in any thread:

1. It waits for all streams of the GPUs, so that the copies include all work launched before.
2. A separate stream copies the tensors into a snapshot in GPU memory, and ``start`` waits for that.
3. The same stream transfers the snapshot to pinned buffers. Only the writer's thread waits for that.

A snapshot takes GPU memory of the tensors' size until it is transferred. If the GPU has too little memory, ``start``
waits for the transfer instead (docs/decisions/0034).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, cuda

MAX_POLLS, POLL = 10_000, 1e-3
"""Number of polls, and seconds between them, after which the writer asks CUDA about a transfer."""

Pair = tuple[Tensor, Tensor]
"""A tensor on a GPU, and its pinned buffer of the same shape and dtype."""


class Transfer(NamedTuple):
    """Transfer of one GPU's tensors to their buffers, in progress."""

    snapshot: list[Tensor]
    """The tensors' copies on the GPU; none if the transfer is over."""
    mark: Tensor
    """Byte in pinned memory that the transfer sets last."""
    done: cuda.Event
    """Recorded after the mark."""

    def wait(self) -> None:
        """Wait until the buffers are complete, and free the snapshot.

        The writer's thread must not call CUDA: that would end a capture of a CUDA graph in another thread. Therefore
        it polls the mark.

        Raises:
            RuntimeError: if the transfer has failed.
        """
        for _ in range(MAX_POLLS):
            if self.mark.item():
                break
            time.sleep(POLL)
        else:
            self.done.synchronize()  # no transfer takes so long: this raises CUDA's error
        self.snapshot.clear()


class HostCopies:
    """Copies from any number of GPUs, on one stream each. The previous transfers must be over before the next ones."""

    def __init__(self) -> None:
        """Begin without streams."""
        self._streams: dict[torch.device, tuple[cuda.Stream, Tensor, Tensor]] = {}
        """Each GPU's stream, mark, and the byte on the GPU that sets the mark."""

    def start(self, pairs: Iterable[Pair]) -> list[Transfer]:
        """Begin to copy tensors to their buffers; the tensors may change as soon as this returns, see the module."""
        by_device: dict[torch.device, list[Pair]] = {}
        for tensor, buffer in pairs:
            by_device.setdefault(tensor.device, []).append((tensor, buffer))
        for device in by_device:  # all of them first: a GPU can write to another one's memory
            cuda.synchronize(device)
        return [self._start_on(device, own) for device, own in by_device.items()]

    def _start_on(self, device: torch.device, pairs: Sequence[Pair]) -> Transfer:
        if device not in self._streams:
            mark = torch.zeros(1, dtype=torch.uint8, pin_memory=True)
            self._streams[device] = cuda.Stream(device), mark, torch.ones_like(mark, device=device)
        stream, mark, one = self._streams[device]
        mark.zero_()
        tensors = [tensor for tensor, _ in pairs]
        with cuda.stream(stream):
            snapshot = take_snapshot(tensors, device)
            taken = stream.record_event()
            for copy, (_, buffer) in zip(snapshot or tensors, pairs, strict=True):
                buffer.copy_(copy, non_blocking=True)
            mark.copy_(one, non_blocking=True)
            done = stream.record_event()
        (taken if snapshot else done).synchronize()
        return Transfer(snapshot, mark, done)


def take_snapshot(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return contiguous copies of ``tensors`` on their GPU, made on the current stream; none if it lacks the memory.

    Twice their size must be free: the other half remains for training. Memory that torch's allocator holds does not
    count as free: it keeps the previous snapshot's memory for the next one, and frees it if training needs more.
    """
    free, _ = cuda.mem_get_info(device)
    if free < 2 * sum(tensor.nbytes for tensor in tensors):
        return []
    try:
        copies = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for tensor in tensors]
    except cuda.OutOfMemoryError:
        return []
    floats = []
    for copy, tensor in zip(copies, tensors, strict=True):
        if tensor.dtype == torch.float32 and tensor.is_contiguous():
            floats.append((copy, tensor))
        else:
            copy.copy_(tensor)
    if floats:  # usually most tensors, in a few kernels; it refuses uint16, and changes NaNs of bfloat16
        torch._foreach_copy_([copy for copy, _ in floats], [tensor for _, tensor in floats])
    return copies

"""Batches on a device, copied ahead of the step that needs them.

A copy to a GPU runs on a separate stream, from pinned memory, while the GPU computes the steps before. Reading ahead
changes when a batch is made, never its values: the caller decides whether that is safe for its source.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

T = TypeVar("T")
AHEAD = {"cuda": 1}
"""Number of batches that are read and copied before they are needed, by type of device."""
END = object()


def on_device(batches: Iterable[T], device: torch.device, *, ahead: bool, thread: bool = False) -> Iterator[T]:
    """Yield ``batches`` with their tensors on ``device``.

    Args:
        batches: tensors in tuples, named tuples, lists, dictionaries and other containers that torch's pytree knows,
            nested in any way. Objects with a method ``to``, such as a PackedSequence, are moved by it. All else stays
            as it is.
        device: device of the step. On a GPU its current stream waits for the copies.
        ahead: whether batches may be read before they are needed. They are for devices in ``AHEAD``.
        thread: whether another thread then reads them. Otherwise reading blocks the caller, and only copies overlap.
    """
    count = AHEAD.get(device.type, 0) if ahead else 0
    started = (_start(batch, device) for batch in batches)
    for copied in _read_by_thread(started, count) if thread and count else _read(started, count):
        yield copied.wait()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return ``tensor`` on ``device``; a copy to a GPU is enqueued on its current stream, from pinned memory."""
    if tensor.device == device:
        return tensor
    if device.type != "cuda":
        return tensor.to(device)
    if tensor.device.type == "cpu" and not tensor.is_pinned():
        if type(tensor) is Tensor:  # of the same layout, but without overlaps
            tensor = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
        else:  # a subclass, which this keeps
            tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class PendingBatch(Generic[T]):
    """A batch whose copy to a device has been enqueued."""

    leaves: list[Any]
    structure: TreeSpec
    device: torch.device
    done: torch.cuda.Event | None
    """Recorded after the copies; None if none was enqueued."""

    def wait(self) -> T:
        """Return the batch; on a GPU, work enqueued from now on waits for the copies, and the caller does not."""
        if self.done:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(self.done)
            for leaf in self.leaves:
                if _is_dense(leaf) and leaf.is_cuda:
                    leaf.record_stream(stream)  # its memory belongs to the stream of the copy
        batch: T = tree_unflatten([self._moved(leaf) for leaf in self.leaves], self.structure)
        return batch

    def _moved(self, leaf: Any) -> Any:
        """Return ``leaf``; objects are moved here, because their memory cannot be recorded for another stream."""
        if _is_dense(leaf) or not _is_movable(leaf):
            return leaf
        moved = leaf.to(self.device)
        return leaf if moved is None else moved


def _start(batch: T, device: torch.device) -> PendingBatch[T]:
    """Enqueue the copy of the tensors in ``batch``, on a GPU on a separate stream."""
    leaves, structure = tree_flatten(batch, is_leaf=_is_movable)
    if device.type != "cuda":
        return PendingBatch(_copied(leaves, device), structure, device, None)
    if all(leaf.device == device for leaf in leaves if _is_dense(leaf)):
        return PendingBatch(leaves, structure, device, None)
    stream = _copy_stream(device)
    # The device first: a thread's own is GPU 0, where leaving the stream would create a context.
    with torch.cuda.device(device), torch.cuda.stream(stream):
        return PendingBatch(_copied(leaves, device), structure, device, stream.record_event())


def _copied(leaves: list[Any], device: torch.device) -> list[Any]:
    return [to_device(leaf, device) if _is_dense(leaf) else leaf for leaf in leaves]


@functools.cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for copies to ``device``: one, because torch reuses memory only on the same stream."""
    return torch.cuda.Stream(device)


def _is_dense(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_nested


def _is_movable(leaf: Any) -> bool:
    return callable(getattr(leaf, "to", None)) and not isinstance(leaf, type)


def _read(items: Iterator[T], ahead: int) -> Iterator[T]:
    """Yield ``items``, each after ``ahead`` more have been read, or after reading has failed."""
    waiting: deque[T] = deque()
    try:
        for item in items:
            waiting.append(item)
            if len(waiting) > ahead:
                yield waiting.popleft()
    except Exception:
        yield from waiting
        raise
    yield from waiting


def _read_by_thread(items: Iterator[T], ahead: int) -> Iterator[T]:
    """Yield ``items``, of which another thread reads up to ``ahead`` before they are needed."""
    with ThreadPoolExecutor(1, "batches") as executor:
        waiting: deque[Future[Any]] = deque(executor.submit(next, items, END) for _ in range(ahead))
        while (item := waiting.popleft().result()) is not END:
            waiting.append(executor.submit(next, items, END))
            yield item

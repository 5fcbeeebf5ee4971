"""Batches on a device, copied ahead of the step that needs them.

A copy to a GPU runs on a stream of its own, from pinned memory, while the GPU computes the steps before. Reading ahead
changes when a batch is made, never its values: the caller decides whether that is safe for its source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

T = TypeVar("T")
END = object()


def on_device(batches: Iterable[T], device: torch.device, *, ahead: int = 0, thread: bool = False) -> Iterator[T]:
    """Yield ``batches`` with their tensors on ``device``.

    Args:
        batches: tensors in any nesting of tuples, lists and dictionaries. Other objects with a method ``to``, such as a
            PackedSequence, are moved by it; everything else stays as it is.
        device: where the batches are used, on the stream that is current there when they are yielded.
        ahead: number of batches that are read and copied before they are needed.
        thread: whether another thread reads them. Otherwise reading blocks the caller, and only copies overlap.
    """
    started = map(CopyStream(device).start, batches)
    for copied in _read_by_thread(started, ahead) if thread else _read(started, ahead):
        yield copied.wait()


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return ``tensor`` on ``device``; a copy to a GPU is enqueued on its current stream, from pinned memory."""
    if tensor.device == device:
        return tensor
    if device.type == "cuda" and tensor.device.type == "cpu" and not tensor.is_pinned():
        tensor = tensor.pin_memory()  # torch keeps pinned memory for later batches
    return tensor.to(device, non_blocking=True)


@dataclass(frozen=True)
class Copied(Generic[T]):
    """A batch whose copy to a device has been enqueued."""

    leaves: list[Any]
    structure: TreeSpec
    device: torch.device
    done: torch.cuda.Event | None
    """Recorded after the copy; None if nothing had to be copied on a stream."""

    def wait(self) -> T:
        """Return the batch; on a GPU, work enqueued from now on waits for the copy, and the caller does not."""
        if self.done:
            stream = torch.cuda.current_stream(self.device)
            stream.wait_event(self.done)
            for leaf in self.leaves:
                if isinstance(leaf, Tensor) and leaf.is_cuda:
                    leaf.record_stream(stream)  # its memory belongs to the stream of the copy
        # Other objects are moved here, because the memory in them cannot be recorded.
        leaves = [
            leaf if isinstance(leaf, Tensor) or not _is_movable(leaf) else leaf.to(self.device) for leaf in self.leaves
        ]
        batch: T = tree_unflatten(leaves, self.structure)
        return batch


class CopyStream:
    """Copies of batches to one device, on a stream of their own if it is a GPU."""

    def __init__(self, device: torch.device) -> None:
        """Copy to ``device``."""
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, batch: T) -> Copied[T]:
        """Enqueue the copy of the tensors in ``batch``."""
        leaves, structure = tree_flatten(batch, is_leaf=_is_movable)
        done = None
        if self._stream is None:
            leaves = self._copy(leaves)
        elif any(isinstance(leaf, Tensor) and leaf.device != self._device for leaf in leaves):
            with torch.cuda.stream(self._stream):
                leaves = self._copy(leaves)
            done = self._stream.record_event()
        return Copied(leaves, structure, self._device, done)

    def _copy(self, leaves: list[Any]) -> list[Any]:
        return [to_device(leaf, self._device) if isinstance(leaf, Tensor) else leaf for leaf in leaves]


def _is_movable(leaf: Any) -> bool:
    return callable(getattr(leaf, "to", None))


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
    """Yield ``items``, which another thread reads, up to ``ahead`` before they are needed."""
    with ThreadPoolExecutor(1, "batches") as thread:
        waiting: deque[Future[Any]] = deque(thread.submit(next, items, END) for _ in range(max(ahead, 1)))
        while waiting:
            item = waiting.popleft().result()
            if item is END:
                return
            waiting.append(thread.submit(next, items, END))
            yield item

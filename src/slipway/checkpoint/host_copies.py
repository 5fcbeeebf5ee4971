"""Copies of a checkpoint's tensors in host memory. Transfers from a GPU continue while training does.

``HostCopies.take`` returns only when nothing reads the run's tensors any more, so training may change them at once, on
any stream and in any thread:

1. It waits for all streams of the GPUs, so that the copies include all work launched before.
2. A stream of its own copies the tensors into a snapshot in GPU memory, and ``take`` waits for that.
3. The same stream transfers the snapshot to pinned buffers. Only the writer's thread waits for that.

A snapshot takes GPU memory of the checkpoint's size until it is transferred. If the GPU has too little memory, ``take``
waits for the transfer instead (docs/decisions/0034).
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, cuda

from slipway.checkpoint.format import Tensors

STREAMED = "cuda"
"""Type of the devices whose copies run on a stream."""
BUFFER = 1 << 26
"""Bytes after which the next buffer begins. Pinned buffers are rounded up to a power of two."""
CARRIERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""A dtype for each element size, so that tensors of several dtypes share a buffer, and are copied bit by bit."""
MAX_POLLS, POLL = 10_000, 1e-3
"""Number of polls, and seconds between them, after which the writer asks CUDA about a transfer."""


class Kind(NamedTuple):
    """What the tensors in a buffer have in common."""

    device: torch.device
    carrier: torch.dtype
    is_contiguous: bool


class Part(NamedTuple):
    """Tensors that share a buffer."""

    kind: Kind
    number: int
    """Number of the part among those of its kind."""
    places: list[tuple[str, str]]
    """File and name of each tensor."""
    tensors: list[Tensor]
    """The tensors, viewed as their carrier, and as a vector if they are contiguous."""
    types: list[tuple[torch.dtype, torch.Size]]
    """The tensors' own dtypes and shapes."""

    @property
    def is_pinned(self) -> bool:
        """Whether the host buffer is pinned: of tensors on a GPU."""
        return self.kind.device.type == "cuda"

    @property
    def elements(self) -> int:
        """Number of elements of all tensors."""
        return sum(shape.numel() for _, shape in self.types)

    @property
    def bytes(self) -> int:
        """Number of bytes of all tensors."""
        return self.elements * self.kind.carrier.itemsize

    def copy_to(self, buffer: Tensor) -> None:
        """Copy the tensors to ``buffer``, on the current stream."""
        places = self._places_in(buffer)
        if self.kind.is_contiguous:  # a few kernels for all tensors
            torch._foreach_copy_(places, self.tensors, non_blocking=self.is_pinned)
        else:
            for place, tensor, (_, shape) in zip(places, self.tensors, self.types, strict=True):
                place.view(shape).copy_(tensor, non_blocking=self.is_pinned)

    def copied(self, buffer: Tensor) -> list[Tensor]:
        """Return the copies in ``buffer``, with the tensors' own dtypes and shapes."""
        pairs = zip(self._places_in(buffer), self.types, strict=True)
        return [place.view(dtype).view(shape) for place, (dtype, shape) in pairs]

    def _places_in(self, buffer: Tensor) -> tuple[Tensor, ...]:
        return buffer[: self.elements].split([shape.numel() for _, shape in self.types])


@torch.no_grad()
def split(tensors: Tensors) -> list[Part]:
    """Divide ``tensors`` into parts that each fill a buffer."""
    parts: dict[Kind, list[Part]] = {}
    filled: dict[Kind, int] = {}
    for file, named in tensors.items():
        for name, tensor in named.items():
            carried = tensor.resolve_conj().resolve_neg().view(CARRIERS[tensor.itemsize])
            kind = Kind(carried.device, carried.dtype, carried.is_contiguous())
            of_kind = parts.setdefault(kind, [])
            filled[kind] = filled.get(kind, BUFFER) + carried.nbytes
            if filled[kind] > BUFFER:
                of_kind.append(Part(kind, len(of_kind), [], [], []))
                filled[kind] = carried.nbytes
            of_kind[-1].places.append((file, name))
            of_kind[-1].tensors.append(carried.flatten() if kind.is_contiguous else carried)
            of_kind[-1].types.append((tensor.dtype, tensor.shape))
    return [part for of_kind in parts.values() for part in of_kind]


class Transfer:
    """Copies of a GPU's snapshot to host buffers, in progress."""

    def __init__(self, snapshot: list[Tensor], mark: Tensor, done: Any) -> None:
        """Wait for a transfer of ``snapshot`` that ends by setting ``mark``, in host memory, and recording ``done``."""
        self._snapshot, self._mark, self._done = snapshot, mark, done

    def wait(self) -> None:
        """Wait until the host buffers are complete, and free the snapshot.

        The writer's thread must not call CUDA: that would end a capture of a CUDA graph in another thread. Therefore
        it polls the mark.

        Raises:
            RuntimeError: if the transfer has failed.
        """
        for _ in range(MAX_POLLS):
            if self._mark.item():
                break
            time.sleep(POLL)
        else:
            self._done.synchronize()  # no transfer takes so long: this raises CUDA's error
        self._snapshot.clear()


class Device:
    """A GPU's stream for copies."""

    def __init__(self, device: torch.device) -> None:
        """Create the stream on ``device``."""
        self._device = device
        self._stream = cuda.Stream(device)
        self._mark = torch.zeros(1, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._kept = 0

    def take(self, parts: Sequence[tuple[Part, Tensor]]) -> Transfer | None:
        """Copy the parts, and return the transfer of the copies to the host buffers; None if it is over.

        Args:
            parts: this device's parts, whose tensors no stream is changing, and their host buffers.
        """
        self._mark.zero_()
        with cuda.stream(self._stream):
            snapshot = self._allocate([part for part, _ in parts])
            for (part, buffer), copy in zip_longest(parts, snapshot):
                part.copy_to(buffer if copy is None else copy)
            taken = self._stream.record_event()
            for (_, buffer), copy in zip(parts, snapshot, strict=False):
                buffer[: len(copy)].copy_(copy, non_blocking=True)
            self._mark.copy_(torch.ones_like(self._mark, device=self._device), non_blocking=True)
            done = self._stream.record_event()
        taken.synchronize()
        return Transfer(snapshot, self._mark, done) if snapshot else None

    def _allocate(self, parts: Sequence[Part]) -> list[Tensor]:
        """Return GPU memory for a snapshot of ``parts``; none if that could leave too little for training.

        It belongs to the copies' stream: torch's allocator keeps it for the next snapshot, or frees it if training
        needs more memory. What the allocator holds does not count as free. The first snapshot needs twice its size, and
        leaves as much; later ones need that rest, so they never take memory that training has used.
        """
        size = sum(part.bytes for part in parts)
        free, _ = cuda.mem_get_info(self._device)
        if free < (size if size <= self._kept else 2 * size):
            return []
        self._kept = max(self._kept, size)
        try:
            return [torch.empty(part.elements, dtype=part.kind.carrier, device=self._device) for part in parts]
        except torch.OutOfMemoryError:
            return []


class Copies(NamedTuple):
    """Host copies of tensors, some of which may still be in transfer."""

    files: list[str]
    parts: list[tuple[Part, Tensor]]
    """The parts, without their tensors, and their host buffers."""
    transfers: list[Transfer]

    def wait(self) -> Tensors:
        """Return the copies when they are complete.

        Raises:
            RuntimeError: if a transfer has failed.
        """
        for transfer in self.transfers:
            transfer.wait()
        copied: Tensors = {file: {} for file in self.files}
        for part, buffer in self.parts:
            for (file, name), copy in zip(part.places, part.copied(buffer), strict=True):
                copied[file][name] = copy
        return copied


class HostCopies:
    """Host buffers that are allocated once, pinned for tensors on a GPU, and copies in them."""

    def __init__(self) -> None:
        """Begin without buffers."""
        self._buffers: dict[tuple[Kind, int], Tensor] = {}
        self._devices: dict[torch.device, Device] = {}

    def reserve(self, parts: Iterable[Part]) -> None:
        """Allocate the buffers of ``parts``, and write to each page that is not pinned."""
        with contextlib.suppress(RuntimeError):  # too little memory: the save will report it
            for part in parts:
                buffer = self._buffer(part)
                if not part.is_pinned:
                    # ctypes releases the GIL; zero_() would start OpenMP threads.
                    ctypes.memset(buffer.data_ptr(), 0, buffer.nbytes)

    def take(self, tensors: Tensors) -> Copies:
        """Return host copies of ``tensors``, which may change as soon as this returns; see the module."""
        parts = [(part, self._buffer(part)) for part in split(tensors)]
        streamed = {part.kind.device for part, _ in parts if part.kind.device.type == STREAMED}
        for device in streamed:  # all of them first: a GPU can write to another one's memory
            cuda.synchronize(device)
        transfers = [
            self._device(each).take([pair for pair in parts if pair[0].kind.device == each]) for each in streamed
        ]
        for part, buffer in parts:
            if part.kind.device not in streamed:
                part.copy_to(buffer)
            part.tensors.clear()
        return Copies([*tensors], parts, [transfer for transfer in transfers if transfer])

    def _device(self, device: torch.device) -> Device:
        if device not in self._devices:
            self._devices[device] = Device(device)
        return self._devices[device]

    def _buffer(self, part: Part) -> Tensor:
        """Return the buffer of ``part``: the previous one if it is large enough, otherwise a new one."""
        key = part.kind, part.number
        buffer = self._buffers.get(key)
        if buffer is None or len(buffer) < part.elements:
            buffer = torch.empty(part.elements, dtype=part.kind.carrier, device="cpu", pin_memory=part.is_pinned)
            self._buffers[key] = buffer
        return buffer

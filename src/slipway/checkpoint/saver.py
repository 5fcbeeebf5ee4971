"""Background saver: copies a checkpoint into preallocated host buffers and writes it in a thread during training."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading

import torch
from torch import Tensor

from slipway.base.errors import NotSavedError, SessionError, SlipwayError, is_retryable, warn
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint, Tensors
from slipway.checkpoint.store import CheckpointStore

log = logging.getLogger(__name__)


class Saver:
    """Writer of one checkpoint at a time. Only rank 0 has one."""

    def __init__(self, store: CheckpointStore, compiled: CompiledCode) -> None:
        """Save to ``store``, and after each checkpoint also save the cache of ``compiled`` code."""
        self._store, self._compiled = store, compiled
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def reserve(self, tensors: Tensors) -> None:
        """Allocate the buffers of CPU tensors in the background, because page faults take longer than the copies.

        The first save allocates pinned buffers: a CUDA graph cannot be captured while another thread allocates.
        """
        self.wait()
        self._thread = threading.Thread(target=self._allocate_buffers, args=(tensors,), name="checkpoint buffers")
        self._thread.start()

    def save(self, checkpoint: Checkpoint) -> None:
        """Copy the tensors and write them in the background; wait only for a save that is still in progress.

        A failed save causes a warning and training continues: the previous checkpoint still exists.
        """
        self.wait()
        snapshot = Checkpoint(self._copy(checkpoint.tensors), checkpoint.header)
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="checkpoint writer")
        self._thread.start()

    def fail(self, error: SlipwayError, *, step: int) -> None:
        """Report that ``error`` prevents a save of the state at ``step``."""
        self.wait()
        self._error = error
        warn(log, error.slug, "checkpoint of step %s not written: %s", step, error)

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
            SlipwayError: if the last save failed.
        """
        self.wait()
        if isinstance(self._error, SessionError):
            raise self._error
        if self._error:
            before = None
            with contextlib.suppress(OSError):
                before = self._store.newest_folder()
            said = f"The newest checkpoint is {before.name}." if before else "The run has no earlier checkpoint."
            failure = NotSavedError(reason=self._error, before=said)
            failure.retryable = is_retryable(self._error)
            raise failure
        self._compiled.save(settled=0)

    def wait(self) -> None:
        """Wait until no save is in progress."""
        if self._thread:
            self._thread.join()
            self._thread = None

    def _copy(self, tensors: Tensors) -> Tensors:
        """Return host copies in buffers that are allocated once, and pinned for tensors on a GPU."""
        copies: Tensors = {}
        for file, named in tensors.items():
            copies[file] = {}
            for name, tensor in named.items():
                buffer = self._buffer(file, name, tensor)
                buffer.copy_(tensor.detach(), non_blocking=True)
                copies[file][name] = buffer
        for device in {tensor.device for named in tensors.values() for tensor in named.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)
        return copies

    def _buffer(self, file: str, name: str, tensor: Tensor) -> Tensor:
        """Return the host buffer for ``tensor``: the previous one if shape and dtype match, otherwise a new one."""
        buffer = self._buffers.get((file, name))
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[file, name] = buffer
        return buffer

    def _allocate_buffers(self, tensors: Tensors) -> None:
        """Allocate the buffers and write to each of their pages."""
        with contextlib.suppress(RuntimeError):  # too little memory: the save will report it
            for file, named in tensors.items():
                for name, tensor in named.items():
                    if not tensor.is_cuda:
                        buffer = self._buffer(file, name, tensor)
                        # ctypes releases the GIL; zero_() would start OpenMP threads.
                        ctypes.memset(buffer.data_ptr(), 0, buffer.nbytes)

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            self._store.add(checkpoint)
            self._error = None
            self._compiled.save()
        except Exception as error:  # noqa: BLE001 -- finish() must report any error
            self._error = error
            warn(
                log,
                "checkpoint-not-written",
                "checkpoint of step %s not written: %s",
                checkpoint.header.position.step,
                error,
            )

"""Background saver: copies a checkpoint into preallocated host buffers and writes it in a thread during training."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections.abc import Sequence

import torch
from torch import Tensor

from slipway.base.errors import NotSavedError, SessionError, SlipwayError, is_retryable, warn
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint, Tensors
from slipway.checkpoint.host_copies import HostCopies, Pair, Transfer
from slipway.checkpoint.store import CheckpointStore

log = logging.getLogger(__name__)


class Saver:
    """Writer of one checkpoint at a time. Only rank 0 has one."""

    def __init__(self, store: CheckpointStore, compiled: CompiledCode) -> None:
        """Save to ``store``, and after each checkpoint also save the cache of ``compiled`` code."""
        self._store, self._compiled = store, compiled
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._host_copies = HostCopies()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def reserve(self, tensors: Tensors) -> None:
        """Allocate the buffers: pinned ones now, the others in the background, because page faults take long.

        A CUDA graph cannot be captured while another thread allocates pinned memory.
        """
        self.wait()
        self._allocate_buffers(tensors, pinned=True)
        self._thread = threading.Thread(target=self._allocate_buffers, args=(tensors,), name="checkpoint buffers")
        self._thread.start()

    def save(self, checkpoint: Checkpoint) -> None:
        """Copy the tensors and write them in the background; wait only for a save that is still in progress.

        The tensors may change as soon as this returns. A failed save causes a warning and training continues: the
        previous checkpoint still exists.
        """
        self.wait()
        copies, transfers = self._copy(checkpoint.tensors)
        snapshot = Checkpoint(copies, checkpoint.header)
        self._thread = threading.Thread(target=self._write, args=(snapshot, transfers), name="checkpoint writer")
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

    def _copy(self, tensors: Tensors) -> tuple[Tensors, list[Transfer]]:
        """Return host copies in buffers that are allocated once, and the transfers of those of tensors on a GPU."""
        copies: Tensors = {}
        on_gpu: list[Pair] = []
        for file, named in tensors.items():
            copies[file] = {}
            for name, tensor in named.items():
                buffer = self._buffer(file, name, tensor)
                if tensor.is_cuda:
                    on_gpu.append((tensor.detach(), buffer))
                else:
                    buffer.copy_(tensor.detach())
                copies[file][name] = buffer
        return copies, self._host_copies.start(on_gpu)

    def _buffer(self, file: str, name: str, tensor: Tensor) -> Tensor:
        """Return the host buffer for ``tensor``: the previous one if shape and dtype match, otherwise a new one."""
        buffer = self._buffers.get((file, name))
        if buffer is None or (buffer.shape, buffer.dtype) != (tensor.shape, tensor.dtype):
            buffer = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=tensor.is_cuda)
            self._buffers[file, name] = buffer
        return buffer

    def _allocate_buffers(self, tensors: Tensors, *, pinned: bool = False) -> None:
        """Allocate the pinned buffers, or allocate the others and write to each of their pages."""
        with contextlib.suppress(RuntimeError):  # too little memory: the save will report it
            for file, named in tensors.items():
                for name, tensor in named.items():
                    if tensor.is_cuda == pinned:
                        buffer = self._buffer(file, name, tensor)
                        if not pinned:
                            # ctypes releases the GIL; zero_() would start OpenMP threads.
                            ctypes.memset(buffer.data_ptr(), 0, buffer.nbytes)

    def _write(self, checkpoint: Checkpoint, transfers: Sequence[Transfer]) -> None:
        try:
            for transfer in transfers:
                transfer.wait()
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

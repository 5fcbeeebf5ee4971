"""Background saver: copies a checkpoint into preallocated host buffers and writes it in a thread during training."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Sequence

from slipway.base.errors import NotSavedError, SessionError, SlipwayError, is_retryable, warn
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint, Tensors
from slipway.checkpoint.host_buffers import HostBuffers
from slipway.checkpoint.host_copies import Transfer
from slipway.checkpoint.sharded_save import ShardedSave
from slipway.checkpoint.store import CheckpointStore

log = logging.getLogger(__name__)


class Saver:
    """Writer of one checkpoint at a time. Only rank 0 has one."""

    def __init__(self, store: CheckpointStore, compiled: CompiledCode) -> None:
        """Save to ``store``, and after each checkpoint also save the cache of ``compiled`` code."""
        self._store, self._compiled = store, compiled
        self._buffers = HostBuffers()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def reserve(self, tensors: Tensors) -> None:
        """Allocate the buffers: pinned ones now, the others in the background, because page faults take long.

        A CUDA graph cannot be captured while another thread allocates pinned memory.
        """
        self.wait()
        self._buffers.allocate(tensors, pinned=True)
        self._thread = threading.Thread(
            target=self._buffers.allocate, args=(tensors,), kwargs={"pinned": False}, name="checkpoint buffers"
        )
        self._thread.start()

    def save(self, checkpoint: Checkpoint, sharded: ShardedSave | None = None) -> None:
        """Copy the tensors and write them in the background; wait only for a save that is still in progress.

        The tensors may change as soon as this returns. A failed save causes a warning and training continues: the
        previous checkpoint still exists.

        Args:
            checkpoint: the checkpoint, without shards.
            sharded: the save of the shards that belong to it, by all ranks.
        """
        self.wait()
        copies, transfers = self._buffers.copy(checkpoint.tensors)
        content = Checkpoint(copies, checkpoint.header), transfers, sharded
        self._thread = threading.Thread(target=self._write, args=content, name="checkpoint writer")
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

    def _write(self, checkpoint: Checkpoint, transfers: Sequence[Transfer], sharded: ShardedSave | None) -> None:
        try:
            for transfer in transfers:
                transfer.wait()
            self._store.add(checkpoint, sharded)
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

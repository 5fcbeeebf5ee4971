"""Background saver: copies a checkpoint to host memory and writes it in a thread during training."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from slipway.base.errors import NotSavedError, SessionError, SlipwayError, is_retryable, warn
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint, Tensors
from slipway.checkpoint.header import Header
from slipway.checkpoint.host_copies import Copies, HostCopies, split
from slipway.checkpoint.store import CheckpointStore

log = logging.getLogger(__name__)


class Saver:
    """Writer of one checkpoint at a time. Only rank 0 has one."""

    def __init__(
        self,
        store: CheckpointStore,
        compiled: CompiledCode,
        *,
        before_first: Callable[[Checkpoint], None] | None = None,
    ) -> None:
        """Save to ``store``, and after each checkpoint also save the cache of ``compiled`` code.

        Args:
            store: the checkpoints of the run.
            compiled: torch.compile's cache.
            before_first: called with the first checkpoint, in the background, before it is written.
        """
        self._store, self._compiled, self._before_first = store, compiled, before_first
        self._host = HostCopies()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def reserve(self, tensors: Tensors) -> None:
        """Allocate the host buffers: pinned ones now, the others in the background, because page faults take long.

        A CUDA graph cannot be captured while another thread allocates pinned memory.
        """
        self.wait()
        parts = split(tensors)
        self._host.reserve(part for part in parts if part.is_pinned)
        others = [part for part in parts if not part.is_pinned]
        self._thread = threading.Thread(target=self._host.reserve, args=(others,), name="checkpoint buffers")
        self._thread.start()

    def save(self, checkpoint: Checkpoint) -> None:
        """Copy the tensors and write them in the background; wait only for a save that is still in progress.

        The tensors may change as soon as this returns. A failed save causes a warning and training continues: the
        previous checkpoint still exists.
        """
        self.wait()
        copies = self._host.take(checkpoint.tensors)
        self._thread = threading.Thread(target=self._write, args=(copies, checkpoint.header), name="checkpoint writer")
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

    def _write(self, copies: Copies, header: Header) -> None:
        try:
            checkpoint = Checkpoint(copies.wait(), header)
            before_first, self._before_first = self._before_first, None
            if before_first:
                before_first(checkpoint)
            self._store.add(checkpoint)
            self._error = None
            self._compiled.save()
        except Exception as error:  # noqa: BLE001 -- finish() must report any error
            self._error = error
            warn(
                log,
                "checkpoint-not-written",
                "checkpoint of step %s not written: %s",
                header.position.step,
                error,
            )

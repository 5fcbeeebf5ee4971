"""Worker processes of DataLoaders, which a signal to all processes of a job must not kill before the rank has saved."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Iterator
from ctypes import c_bool
from multiprocessing import resource_tracker
from multiprocessing.queues import Queue
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from slipway.base.stop import SIGNALS, ignore_signals
from slipway.rng.loader_generators import seed_worker, watch_worker


def end_when_queue_fails() -> None:
    """Let this worker end when it cannot hand over a batch, as /dev/shm is full.

    The queue would drop the batch, and the rank wait for ever. To be called before the first one is handed over.
    """

    def end(error: Exception, _batch: object) -> NoReturn:
        with contextlib.suppress(OSError):  # the terminal is gone
            os.write(2, f"error[lost-worker]: a worker of a DataLoader cannot hand over its batch: {error}\n".encode())
        os._exit(1)

    Queue._on_queue_feeder_error = staticmethod(end)  # type: ignore[attr-defined] # noqa: SLF001 -- made to be replaced


class Shield:
    """A ``worker_init_fn`` that passes over signals while a session is open, and then calls the user's own."""

    def __init__(self, loader: DataLoader[Any], closed: Any) -> None:
        """Prepare the workers of ``loader``; ``closed``, in shared memory, says that the session is over."""
        self._own, self._collate = loader.worker_init_fn, loader.collate_fn
        self._persists = loader.persistent_workers
        self._closed = closed

    def __call__(self, worker: int) -> None:
        """Begin in a worker process; its signals have been blocked since before it was started."""
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as SIGHUP is under nohup
                signal.signal(number, self._obey_once_closed)
        Finalize(None, ignore_signals, exitpriority=0)  # when Python ends, it takes its handlers away
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        end_when_queue_fails()
        if self._own:
            self._own(worker)
        info: Any = get_worker_info()
        watch_worker(info.dataset, self._collate)
        if self._persists:  # as for each later pass
            seed_worker(info.seed)

    def _obey_once_closed(self, number: int, _frame: FrameType | None) -> None:
        if self._closed.value:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class Reseed(NamedTuple):
    """Goes to workers that persist, with torch's message that a pass begins, and seeds each where it arrives."""

    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Be pickled as a call."""
        return _reseed_worker, (self.seed,)


def _reseed_worker(seed: int) -> None:
    info: Any = get_worker_info()
    seed_worker(seed + info.id)  # as torch does where a worker starts


def begin_pass(loader: DataLoader[Any]) -> None:
    """Let workers of ``loader`` that persist from an earlier pass draw what ones that start now would draw.

    Those of an IterableDataset are ended, so that others start: its iteration may depend on its state. So are
    those that run since before the session.
    """
    iterator: Any = loader._iterator  # noqa: SLF001
    if iterator is None:
        return
    if isinstance(loader.dataset, IterableDataset) or not isinstance(
        getattr(iterator, "_worker_init_fn", None), Shield
    ):
        end_workers(loader)
        return
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator))  # drawn as for those that start
    iterator._shared_seed = Reseed(seed)  # noqa: SLF001 -- sent to them when the pass begins


@contextlib.contextmanager
def shielded_workers() -> Iterator[None]:
    """Shield the workers that any DataLoader starts within, those of a validation set too.

    The signals are blocked while they start, as a process that is spawned inherits that, and would die of a signal
    before it can set a handler.
    """
    closed = multiprocessing.RawValue(c_bool, False)
    iterate = DataLoader.__iter__
    get_iterator = DataLoader._get_iterator  # noqa: SLF001 -- all of torch's ways to start workers pass here

    def get_reseeded(loader: DataLoader[Any]) -> Any:
        begin_pass(loader)
        return iterate(loader)

    def get_shielded(loader: DataLoader[Any]) -> Any:
        if loader.num_workers == 0:
            return get_iterator(loader)
        own = loader.worker_init_fn
        if not isinstance(own, Shield):
            loader.worker_init_fn = Shield(loader, closed)
        resource_tracker.ensure_running()  # or its start, with the first worker that is spawned, unblocks signals
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            return get_iterator(loader)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            loader.worker_init_fn = own

    DataLoader.__iter__ = get_reseeded  # type: ignore[method-assign]
    DataLoader._get_iterator = get_shielded  # type: ignore[assignment, method-assign] # noqa: SLF001
    try:
        yield
    finally:
        DataLoader.__iter__ = iterate  # type: ignore[method-assign]
        DataLoader._get_iterator = get_iterator  # type: ignore[method-assign] # noqa: SLF001
        closed.value = True


def end_workers(loader: object) -> None:
    """End the workers of ``loader`` that persist; torch does it only once nothing refers to their iterator any more.

    Python's exit would send them SIGTERM, and wait for ever for those that pass over it.
    """
    if has_running_workers(loader):
        loader._iterator._shutdown_workers()  # type: ignore[attr-defined] # noqa: SLF001
        loader._iterator = None  # type: ignore[attr-defined] # noqa: SLF001 -- as before they were started


def has_running_workers(loader: object) -> bool:
    """Return whether ``loader`` has workers that persist and were started before."""
    return isinstance(loader, DataLoader) and hasattr(loader._iterator, "_shutdown_workers")  # noqa: SLF001

"""Protect DataLoader workers from signals that all processes of a job get, until the rank has saved."""

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
from slipway.rng.loader_generators import register_worker_generators, seed_worker


def exit_on_queue_error() -> None:
    """Make this worker exit if it cannot send a batch, such as when /dev/shm is full.

    Otherwise the queue would drop the batch and the rank would wait forever. Call this before the first batch is sent.
    """

    def end(error: Exception, _batch: object) -> NoReturn:
        with contextlib.suppress(OSError):  # the terminal is closed
            os.write(2, f"error[lost-worker]: a DataLoader worker cannot send its batch: {error}\n".encode())
        os._exit(1)

    Queue._on_queue_feeder_error = staticmethod(end)  # type: ignore[attr-defined] # noqa: SLF001 -- intended to be replaced


class Shield:
    """A ``worker_init_fn`` that makes the worker ignore signals while a session is open, and calls the user's own."""

    def __init__(self, loader: DataLoader[Any], closed: Any) -> None:
        """Protect the workers of ``loader`` from signals until ``closed``, a flag in shared memory, is set."""
        self._own, self._collate = loader.worker_init_fn, loader.collate_fn
        self._persists = loader.persistent_workers
        self._closed = closed

    def __call__(self, worker: int) -> None:
        """Initialize a worker process, which inherited blocked signals from its parent."""
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # SIGHUP is ignored under nohup
                signal.signal(number, self._handle_signal)
        Finalize(None, ignore_signals, exitpriority=0)  # Python removes its handlers at exit
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        exit_on_queue_error()
        if self._own:
            self._own(worker)
        info: Any = get_worker_info()
        register_worker_generators(info.dataset, self._collate)
        if self._persists:  # as before each later pass
            seed_worker(info.seed)

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._closed.value:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


class Reseed(NamedTuple):
    """Seed sent to persistent workers with torch's message that a pass begins; unpickling it seeds the worker."""

    seed: int

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call that seeds the worker."""
        return _reseed_worker, (self.seed,)


def _reseed_worker(seed: int) -> None:
    info: Any = get_worker_info()
    seed_worker(seed + info.id)  # as torch does when a worker starts


def begin_pass(loader: DataLoader[Any]) -> None:
    """Make persistent workers of ``loader`` draw the same random numbers as workers that start now.

    Workers of an IterableDataset are ended, so that new ones start, because its iteration may depend on its state.
    Workers that were started before the session are ended too.
    """
    iterator: Any = loader._iterator  # noqa: SLF001
    if iterator is None:
        return
    if isinstance(loader.dataset, IterableDataset) or not isinstance(
        getattr(iterator, "_worker_init_fn", None), Shield
    ):
        end_workers(loader)
        return
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator))  # drawn as for new workers
    iterator._shared_seed = Reseed(seed)  # noqa: SLF001 -- sent to the workers when the pass begins


@contextlib.contextmanager
def shielded_workers() -> Iterator[None]:
    """Shield the workers that any DataLoader starts in the body, including a validation set's.

    Signals are blocked while workers start. A spawned process inherits this; otherwise a signal would kill it before
    it could set a handler.
    """
    closed = multiprocessing.RawValue(c_bool, False)
    iterate = DataLoader.__iter__
    get_iterator = DataLoader._get_iterator  # noqa: SLF001 -- torch starts all workers through this

    def get_reseeded(loader: DataLoader[Any]) -> Any:
        begin_pass(loader)
        return iterate(loader)

    def get_shielded(loader: DataLoader[Any]) -> Any:
        if loader.num_workers == 0:
            return get_iterator(loader)
        own = loader.worker_init_fn
        if not isinstance(own, Shield):
            loader.worker_init_fn = Shield(loader, closed)
        resource_tracker.ensure_running()  # otherwise it starts with the first spawned worker and unblocks signals
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
    """End the persistent workers of ``loader``; torch ends them only after the last reference to their iterator.

    At exit, Python would send them SIGTERM and wait forever for workers that ignore it.
    """
    if has_running_workers(loader):
        loader._iterator._shutdown_workers()  # type: ignore[attr-defined] # noqa: SLF001
        loader._iterator = None  # type: ignore[attr-defined] # noqa: SLF001 -- as before they were started


def has_running_workers(loader: object) -> bool:
    """Return whether ``loader`` has persistent workers that are already running."""
    return isinstance(loader, DataLoader) and hasattr(loader._iterator, "_shutdown_workers")  # noqa: SLF001

"""Loader of micro-batches: from data sets in memory or on the device, or from files by worker processes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from slipway.base.errors import add_label
from slipway.base.stop import ignore_signals
from slipway.data import device_batches
from slipway.data.loading import Requests
from slipway.data.workers import end_workers, exit_on_queue_error
from trainer.data.base import Dataset, Draws, Fetched, Ids, InMemoryDataset
from trainer.data.micro_batches import MicroBatch

NO_LABEL = -100
"""Label of a sample that does not count: cross_entropy's default for ``ignore_index``."""


class Batch(NamedTuple):
    """A micro-batch with its data on the rank's device."""

    images: Tensor
    """uint8 [n, c, h, w]"""
    labels: Tensor
    """int64 [n]; NO_LABEL for samples that do not count."""
    micro: MicroBatch
    bad: int
    """Number of images that could not be read."""


def by_step(batches: Iterable[Batch]) -> Iterator[tuple[MicroBatch, Iterator[Batch]]]:
    """Yield, for each optimizer step, its first MicroBatch and a lazy iterator over its batches."""
    batches = iter(batches)
    for first in batches:
        yield first.micro, itertools.chain([first], itertools.islice(batches, first.micro.total - 1))


class Stopwatch:
    """Timer of the wait for an iterator's next item."""

    def __init__(self) -> None:
        """Start at 0 seconds."""
        self._seconds = 0.0

    def timed(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield ``batches``, and add up the time spent waiting for each."""
        batches = iter(batches)
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            self._seconds += time.perf_counter() - began
            if batch is None:
                return
            yield batch

    def take(self) -> float:
        """Return the seconds spent waiting since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class _Request(NamedTuple):
    ids: Ids
    draws: Draws | None


@dataclass(frozen=True)
class _ByRequest(TorchDataset["Fetched | OSError"]):
    """Adapter from a Dataset to a DataLoader: one item per request."""

    dataset: Dataset

    def __getitem__(self, request: _Request) -> Fetched | OSError:
        try:
            return self.dataset.fetch(*request)
        except OSError as error:
            if error.errno is None:
                raise
            return OSError(error.errno, error.strerror, error.filename)  # a DataLoader would keep only the text


def _no_collate(fetched: Any) -> Any:
    """Return ``fetched``; torch's default would convert the lists in it to tensors."""
    return fetched


def _start_worker(worker: int) -> None:
    ignore_signals(worker)
    exit_on_queue_error()
    torch.set_num_threads(1)


class Loader:
    """Turns micro-batches of sample ids into batches with data on the device.

    For a GPU, another thread fetches images from data sets in memory. The way of reading does not change the values.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        workers: int,
        device: torch.device,
        warn: Callable[[str], None],
        memory_fraction: float = 0.0,
    ) -> None:
        """Prepare to read ``dataset``; workers start with the first pass and persist.

        Args:
            dataset: the data set.
            workers: processes that read files.
            device: device of the step.
            warn: is called with a message for each image that cannot be decoded.
            memory_fraction: a data set in memory is moved to a GPU if it needs at most this fraction of the free memory
                there.
        """
        self.dataset = dataset
        self.resident_bytes = 0
        """Bytes of the data set on the GPU."""
        if isinstance(dataset, InMemoryDataset) and fits(dataset, device, memory_fraction):
            self.dataset, self.resident_bytes = dataset.to(device), dataset.images.nbytes
        self._device = device
        self._warn = warn
        self._requests = Requests()
        self._fetched: Iterable[Fetched | OSError] | None = None
        if not dataset.in_memory:
            self._fetched = DataLoader(
                _ByRequest(dataset),
                sampler=self._requests,
                batch_size=None,
                collate_fn=_no_collate,
                num_workers=workers,
                persistent_workers=workers > 0,
                pin_memory=device.type == "cuda",
                worker_init_fn=_start_worker,
            )

    def close(self) -> None:
        """End the workers; call this after the last batch was read."""
        end_workers(self._fetched)

    def batches(
        self, plan: Iterable[MicroBatch], *, draws: Callable[[Ids], Draws | None] = lambda _: None
    ) -> Iterator[Batch]:
        """Yield the data of each micro-batch of ``plan``, in order.

        Args:
            plan: the micro-batches; read as far ahead as batches are fetched.
            draws: returns the random numbers to augment the given samples, float32 [n, dataset.draws], or None.
        """
        plan, ahead = itertools.tee(plan)
        requests = (_Request(micro.ids, draws(micro.ids)) for micro in ahead)
        batches = itertools.starmap(self._batch, zip(plan, self._fetch(requests), strict=True))
        if self.resident_bytes or self._device.type not in device_batches.AHEAD:  # already on the device
            return batches
        return device_batches.on_device(batches, self._device, ahead=True, thread=self.dataset.in_memory)

    def _fetch(self, requests: Iterator[_Request]) -> Iterable[Fetched | OSError]:
        if self._fetched is None:
            return (self.dataset.fetch(*request) for request in requests)
        self._requests.now = requests
        return self._fetched

    def _batch(self, micro: MicroBatch, fetched: Fetched | OSError) -> Batch:
        if isinstance(fetched, OSError):
            raise fetched
        labels = self.dataset.labels[torch.from_numpy(micro.ids)]
        if not micro.counted:
            labels.fill_(NO_LABEL)
        for position, reason in itertools.zip_longest(fetched.bad, fetched.reasons[: len(fetched.bad)]):
            labels[position] = NO_LABEL
            if micro.counted:
                name = self.dataset.describe(int(micro.ids[position]))
                text = f"cannot decode {name}{f' ({reason})' * bool(reason)}; training skips it"
                self._warn(add_label("warning", "damaged-image", text))
        labels = device_batches.to_device(labels, fetched.images.device)
        return Batch(fetched.images, labels, micro, len(fetched.bad) if micro.counted else 0)


def fits(dataset: InMemoryDataset, device: torch.device, fraction: float) -> bool:
    """Return whether ``device`` is a GPU and the images need at most ``fraction`` of its free memory."""
    return device.type == "cuda" and dataset.images.nbytes <= fraction * torch.cuda.mem_get_info(device)[0]

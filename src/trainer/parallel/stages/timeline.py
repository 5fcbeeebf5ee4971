"""Timing of a pipeline's passes, by each device's clock."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from trainer.parallel.stages.schedule import Timed, Unit, needs

Mark = float | torch.cuda.Event
"""A point in time: seconds of the host's clock, or an event in a GPU's stream."""


class Timeline:
    """Timer of passes; on GPUs it does not wait for them."""

    def __init__(self, devices: Sequence[torch.device]) -> None:
        """Wait until all ``devices``, one per stage, are idle, and set time 0."""
        self._devices = devices
        self._marks: list[tuple[Unit, Mark, Mark]] = []
        self._wait()
        self._zero = {device: _mark(device) for device in set(devices)}

    @contextmanager
    def measure(self, unit: Unit) -> Iterator[None]:
        """Measure the computation that runs, or is launched, within this context."""
        device = self._devices[unit.stage]
        before = _mark(device)
        yield
        self._marks.append((unit, before, _mark(device)))

    def passes(self) -> list[Timed]:
        """Wait for the devices and return the measured passes, in seconds since time 0 and in order of issue.

        A pass that waits for others on its device starts when the last of them ends.
        """
        self._wait()
        found: dict[Unit, Timed] = {}
        for unit, start, end in self._marks:
            waited = [found[other].end for other in needs(unit, stages=len(self._devices)) if other in found]
            found[unit] = Timed(unit, max([self._seconds(unit, start), *waited]), self._seconds(unit, end))
        return list(found.values())

    def _seconds(self, unit: Unit, mark: Mark) -> float:
        zero = self._zero[self._devices[unit.stage]]
        if isinstance(mark, torch.cuda.Event):
            assert isinstance(zero, torch.cuda.Event)
            return zero.elapsed_time(mark) / 1e3
        assert not isinstance(zero, torch.cuda.Event)
        return mark - zero

    def _wait(self) -> None:
        for device in self._devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)


def _mark(device: torch.device) -> Mark:
    if device.type != "cuda":
        return time.perf_counter()
    with torch.cuda.device(device):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
    return event

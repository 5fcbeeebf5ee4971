"""``--profile``: the time of a few optimiser steps, by torch's profiler, or the startup time, by part.

A rank leaves two files in the folder profile/ of the run: ``rankN.trace.json.gz``, which https://ui.perfetto.dev and
chrome://tracing open, and ``rankN.json``, a summary of it for the log and the report. With ``--profile start`` it
leaves ``start.rankN.json``, the seconds of each part of ``slipway.base.startup_time``.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from slipway.base.contract import PROFILE
from slipway.base.environment import World
from slipway.base.errors import one_line, warn
from slipway.base.files import replacing, write_json
from slipway.base.goodput import describe_start
from trainer.config.errors import ConfigError
from trainer.config.settings import Launch
from trainer.data.loader import Batch

DATA, FORWARD, BACKWARD, UPDATE = PARTS = ("waiting for data", "forward", "backward", "update")
"""Of a step, as the trace names them. Ranks exchange gradients while backward goes on, or in update under Horovod."""
START = "start"
"""Value of --profile that records the start in place of steps."""
OPERATORS = 5
"""So many of the costliest are in a summary."""
log = logging.getLogger(__name__)


class Profiler:
    """Records some steps of an attempt."""

    def __init__(self, steps: range, folder: Path, *, rank: int) -> None:
        """Make ready to record ``steps``, counted from 1 in this attempt, into ``folder``."""
        self._steps, self._folder, self._rank = steps, folder, rank
        self._done = 0
        self._profile: torch.profiler.profile | None = None
        self._began = 0.0
        self._recorded = False
        """Whether a batch has come since the record began."""

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Pass on the batches of an epoch; at its end, or where it is left, a record ends too."""
        batches = iter(batches)
        begins = True
        try:
            while True:
                if begins and self._done + 1 == self._steps.start:
                    self._start()
                with self._part(DATA):
                    batch = next(batches, None)
                if batch is None:
                    return
                self._recorded |= self._profile is not None
                yield batch
                begins = batch.micro.last
                self._done += begins
                if begins and self._done + 1 == self._steps.stop:
                    self._stop()
        finally:
            self._stop()

    def _part(self, name: str) -> AbstractContextManager[Any]:
        return record_function(name) if self._profile else contextlib.nullcontext()

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        self._began = time.perf_counter()

    def _stop(self) -> None:
        """End the record, if one is under way, and write it. A disk that takes none of it must not end the run."""
        profile, self._profile = self._profile, None
        if profile is None:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self._began
        profile.stop()
        if not self._recorded:
            return
        last = max(self._done, self._steps.start)
        found = summary(profile, seconds) | {"rank": self._rank, "steps": [self._steps.start, last]}
        try:
            self._folder.mkdir(exist_ok=True)
            trace = self._folder / f"rank{self._rank}.trace.json.gz"
            with replacing(trace) as temporary:
                profile.export_chrome_trace(str(temporary))
            write_json(self._folder / f"rank{self._rank}.json", found)
        except (OSError, RuntimeError) as error:  # the latter is torch's
            warn(log, "no-profile", "the profile cannot be written: %s", one_line(str(error)))
        else:
            log.info("profile of %s; https://ui.perfetto.dev opens %s", describe(found), trace)


def summary(profile: torch.profiler.profile, seconds: float) -> dict[str, Any]:
    """Return what a profile that took so many ``seconds`` says: the seconds of each part, and the costliest operators.

    On GPUs an operator takes the time of its kernels, and parts are the host's: a GPU may work on behind them.
    """
    events = profile.key_averages()
    parts = {event.key: event.cpu_time_total / 1e6 for event in events if event.key in PARTS}
    on_gpu = any(event.self_device_time_total for event in events)

    def cost(event: Any) -> float:
        return (event.self_device_time_total if on_gpu else event.self_cpu_time_total) / 1e6

    operators = sorted((event for event in events if event.key not in PARTS), key=cost, reverse=True)
    return {
        "seconds": seconds,
        "device": "cuda" if on_gpu else "cpu",
        "parts": {name: parts.get(name, 0.0) for name in PARTS},
        "operators": [
            {"name": event.key, "seconds": cost(event), "calls": event.count} for event in operators[:OPERATORS]
        ],
    }


def describe(found: dict[str, Any]) -> str:
    """Return a summary in a line."""
    first, last = found["steps"]
    parts = ", ".join(f"{name} {seconds / found['seconds']:.0%}" for name, seconds in found["parts"].items())
    costliest = ", ".join(f"{row['name']} {row['seconds'] / found['seconds']:.0%}" for row in found["operators"])
    return f"steps {first} to {last} on rank {found['rank']}: {parts}; costliest: {costliest}"


def profiler_for(launch: Launch, folder: Path, world: World) -> Profiler | None:
    """Return what records the steps that --profile names in the run ``folder``; None where this rank records nothing.

    Raises:
        ConfigError: on all ranks, for steps or ranks that there are not.
    """
    if not launch.profile:
        return None
    ranks = profiled_ranks(launch, world)
    steps = range(1) if launch.profile == START else range(*_first_and_end(launch.profile))
    wrong = ""
    if not steps:
        wrong = f"launch.profile: {launch.profile} ends before it begins."
    elif max(ranks) >= world.size:
        wrong = f"launch.profile_ranks: there is no rank {max(ranks)}: they are 0 to {world.size - 1}."
    if wrong:
        error = ConfigError("bad-profile", wrong)
        error.raised_on_all_ranks = True
        raise error
    if launch.profile == START or world.rank not in ranks:
        return None
    return Profiler(steps, folder / PROFILE, rank=world.rank)


def profiled_ranks(launch: Launch, world: World) -> Sequence[int]:
    """Return the ranks that --profile-ranks names; some may not exist."""
    if launch.profile_ranks == "all":
        return range(world.size)
    return [int(rank) for rank in launch.profile_ranks.split(",")]


def write_start(parts: Mapping[str, float], folder: Path, *, rank: int) -> None:
    """Write the seconds up to the first step, by part, into ``folder``, and log them."""
    try:
        folder.mkdir(exist_ok=True)
        write_json(folder / f"start.rank{rank}.json", {"rank": rank, "seconds": dict(parts)})
    except OSError as error:
        warn(log, "no-profile", "the profile of the start cannot be written: %s", error.strerror)
    else:
        log.info("rank %d: %s", rank, describe_start(dict(parts)))


def warn_if_missed(launch: Launch, steps: int) -> None:
    """Say so where an attempt that took so many steps ended before those that --profile names."""
    first = 1 if launch.profile == START else _first_and_end(launch.profile or "0")[0]
    if launch.profile and steps < first:
        warn(
            log, "no-profile", "--profile %s: nothing is profiled, as this attempt took %d steps", launch.profile, steps
        )


def _first_and_end(steps: str) -> tuple[int, int]:
    first, _, last = steps.partition("-")
    return int(first), int(last or first) + 1

"""``--profile``: profiles of a few optimizer steps by torch's profiler, or of the startup by phase.

A rank writes two files to the folder profile/ of the run: ``rankN.trace.json.gz``, to open in https://ui.perfetto.dev
or chrome://tracing, and ``rankN.json``, a summary for the log and the report. With ``--profile start`` it writes
``start.rankN.json``, the seconds of each phase in ``slipway.base.startup_time``.
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
"""Parts of a step, as the trace names them. Ranks exchange gradients during backward; with Horovod, in update."""
START = "start"
"""Value of --profile that records the startup instead of steps."""
OPERATORS = 5
"""Number of the costliest operators in a summary."""
log = logging.getLogger(__name__)


class Profiler:
    """Recorder of some steps of an attempt."""

    def __init__(self, steps: range, folder: Path, *, rank: int) -> None:
        """Prepare to record ``steps``, counted from 1 in this attempt, in ``folder``."""
        self._steps, self._folder, self._rank = steps, folder, rank
        self._done = 0
        self._profile: torch.profiler.profile | None = None
        self._began = 0.0
        self._recorded = False
        """Whether a batch has arrived since the profile began."""

    def watch(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the batches of an epoch; a profile ends with the pass, also if the pass ends early."""
        batches = iter(batches)
        begins = True
        try:
            while True:
                if begins and self._done + 1 == self._steps.start:
                    self._start()
                with profiled(DATA):
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

    def _start(self) -> None:
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
            torch.cuda.synchronize()
        self._profile = torch.profiler.profile(activities=activities)
        self._profile.start()
        self._began = time.perf_counter()

    def _stop(self) -> None:
        """End the profile, if one is active, and write it. A failed write must not end the run."""
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
            warn(log, "no-profile", "cannot write the profile: %s", one_line(str(error)))
        else:
            log.info("profile of %s; open it in https://ui.perfetto.dev: %s", describe(found), trace)


def profiled(name: str) -> AbstractContextManager[Any]:
    """Return a context that marks a part of a step in an active profile; without a profile it does nothing."""
    is_active = torch.autograd.profiler._is_profiler_enabled  # noqa: SLF001 -- torch's flag for such checks
    return record_function(name) if is_active else contextlib.nullcontext()


def summary(profile: torch.profiler.profile, seconds: float) -> dict[str, Any]:
    """Summarize a profile of ``seconds`` s: the seconds of each part, and the costliest operators.

    On GPUs, an operator's time is that of its kernels. The time of a part is the host's, and a GPU may still be working
    when the part ends.
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
    """Return a summary as one line."""
    first, last = found["steps"]
    parts = ", ".join(f"{name} {seconds / found['seconds']:.0%}" for name, seconds in found["parts"].items())
    costliest = ", ".join(f"{row['name']} {row['seconds'] / found['seconds']:.0%}" for row in found["operators"])
    return f"steps {first} to {last} on rank {found['rank']}: {parts}; costliest: {costliest}"


def profiler_for(launch: Launch, folder: Path, world: World) -> Profiler | None:
    """Return the profiler for the steps in --profile, which writes to the run ``folder``; None if this rank has none.

    Raises:
        ConfigError: on all ranks, if the range of steps is empty or a rank does not exist.
    """
    if not launch.profile:
        return None
    ranks = profiled_ranks(launch.profile_ranks, world)
    steps = range(1) if launch.profile == START else range(*_step_range(launch.profile))
    wrong = ""
    if not steps:
        wrong = f"launch.profile: {launch.profile} ends before it begins."
    elif max(ranks) >= world.size:
        wrong = f"launch.profile_ranks: rank {max(ranks)} does not exist; ranks are 0 to {world.size - 1}."
    if wrong:
        raise ConfigError("bad-profile", wrong, raised_on_all_ranks=True)
    if launch.profile == START or world.rank not in ranks:
        return None
    return Profiler(steps, folder / PROFILE, rank=world.rank)


def profiled_ranks(ranks: str, world: World) -> Sequence[int]:
    """Return the numbers in ``ranks``, the value of --profile-ranks; some of these ranks may not exist."""
    return range(world.size) if ranks == "all" else [int(rank) for rank in ranks.split(",")]


def write_start(parts: Mapping[str, float], folder: Path, *, rank: int) -> None:
    """Write the seconds from start to the first step, by phase, to ``folder``, and log them."""
    try:
        folder.mkdir(exist_ok=True)
        write_json(folder / f"start.rank{rank}.json", {"rank": rank, "seconds": dict(parts)})
    except OSError as error:
        warn(log, "no-profile", "cannot write the startup profile: %s", error.strerror)
    else:
        log.info("rank %d: %s", rank, describe_start(dict(parts)))


def warn_if_missed(profile: str | None, steps: int) -> None:
    """Warn if the attempt ended, after ``steps`` steps, before the first step in --profile."""
    if profile and steps < (1 if profile == START else _step_range(profile)[0]):
        warn(log, "no-profile", "--profile %s: no profile, because this attempt took %d steps", profile, steps)


def _step_range(steps: str) -> tuple[int, int]:
    first, _, last = steps.partition("-")
    return int(first), int(last or first) + 1

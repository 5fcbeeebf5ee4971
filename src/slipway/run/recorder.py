"""What rank 0 writes while a run goes on, and at its end: checkpoints, metrics, the status."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from slipway.base.environment import World
from slipway.base.errors import SlipwayError
from slipway.base.goodput_clock import Clock
from slipway.base.status import Status
from slipway.base.stop import Reason
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.saver import Saver
from slipway.checkpoint.space import warn_of_little_space
from slipway.checkpoint.store import CheckpointStore
from slipway.run.attempt import Attempt, writing
from slipway.run.metrics import JsonLines, Record, read_records
from slipway.run.trackers import Background, TrackedRun, start_trackers


class Recorder:
    """Writes the run folder of an attempt, from its beginning to its end. Rank 0 alone has one."""

    def __init__(self, attempt: Attempt, compiled: CompiledCode, *, keep: int, step: int) -> None:
        """Record ``attempt``, which begins at ``step``.

        Args:
            attempt: that has begun.
            compiled: what torch.compile makes, which is kept with each checkpoint.
            keep: number of the newest checkpoints that stay, besides the best.
            step: optimiser steps done before; what the folder holds beyond it is undone.
        """
        folder = attempt.folder
        self.attempt = attempt
        store = CheckpointStore(folder.checkpoints, keep=keep, check_owner=attempt.check)
        with writing(folder.path):
            store.set_aside_after(step)
            self._metrics = JsonLines(folder.metrics, step=step)
            self.clock = Clock(folder.goodput, attempt=attempt.number, step=step)
        self._trackers: Sequence[Background] = ()
        self._known = Counter(_place(record) for record in read_records(folder.metrics) if record["step"] == step)
        self._saver = Saver(store, compiled)
        self._keep = keep
        self._has_saved = False

    def start_trackers(self, names: Sequence[str], place: TrackedRun) -> None:
        """Let the trackers ``names`` have each record that metrics.jsonl gets."""
        self._trackers = start_trackers(names, place)

    def write(self, record: Record) -> None:
        """Append a record to metrics.jsonl, and hand it to the trackers; not one that was there at the start."""
        place = _place(record)
        if self._known[place]:
            self._known[place] -= 1
            return
        self._metrics.write(record)
        for tracker in self._trackers:
            tracker.write(record)

    def reserve(self, checkpoint: Checkpoint) -> None:
        """Prepare in the background for checkpoints like ``checkpoint``."""
        self._saver.reserve(checkpoint.tensors)

    def save(self, checkpoint: Checkpoint) -> None:
        """Save ``checkpoint`` in the background.

        Raises:
            LostFolderError: if the run folder is no longer ours.
        """
        self.attempt.check()
        if not self._has_saved:
            warn_of_little_space(checkpoint, self.attempt.folder.checkpoints, keep=self._keep, quota=self.attempt.quota)
            self._has_saved = True
        self._saver.save(checkpoint)

    def note_not_saved(self, error: SlipwayError, *, step: int) -> None:
        """Warn that ``error`` keeps the state at ``step`` from being saved; the attempt fails if that remains so."""
        self._saver.fail(error, step=step)

    def finish(self) -> None:
        """Make everything durable.

        Raises:
            SlipwayError: if the last checkpoint could not be written.
            OSError: if the last records could not.
        """
        self._saver.finish()
        self._metrics.close()
        for tracker in self._trackers:
            tracker.end(complete=True)

    def wait(self) -> None:
        """Wait until nothing is being written any more."""
        self._saver.wait()

    def close(self) -> None:
        """Wait likewise, and end the trackers that an error has left."""
        self.wait()
        for tracker in self._trackers:
            tracker.end(complete=False)

    def conclude(self, reason: Reason, *, step: int) -> Status:
        """Say what became of the attempt, once everything is durable: done, or stopped for ``reason``, at ``step``."""
        self.clock.write(step, concluded=True)
        self.clock.close()
        return self.attempt.conclude(reason, step=step)


def _place(record: Record) -> tuple[Any, ...]:
    return record["kind"], record["step"], record.get("epoch"), *sorted(record)  # a test may follow a validation


def provenance(world: World, launched: Mapping[str, object]) -> dict[str, object]:
    """Return what run.json says of this process: when, where, by which command and versions it runs.

    Args:
        world: the ranks that take part.
        launched: the settings of this launch as they were resolved.
    """
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "world_size": world.size,
        "launch": launched,
    }

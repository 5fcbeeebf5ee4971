"""Rank 0's output of a run: checkpoints, metrics, time records and the status."""

from __future__ import annotations

import platform
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from slipway.base.environment import World
from slipway.base.errors import SlipwayError
from slipway.base.stop import Reason
from slipway.checkpoint.compile_cache import CompiledCode
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.saver import Saver
from slipway.checkpoint.sharded_save import Report, ShardedSave
from slipway.checkpoint.shards import without_shards
from slipway.checkpoint.space import warn_if_low_space
from slipway.checkpoint.store import CheckpointStore
from slipway.run.attempt import Attempt, writing
from slipway.run.goodput_clock import Clock
from slipway.run.metrics import JsonLines, Record, read_records
from slipway.run.status import Status
from slipway.run.trackers import Background, TrackedRun, start_trackers


class Recorder:
    """Writer of the run folder during an attempt. Only rank 0 has one."""

    def __init__(self, attempt: Attempt, compiled: CompiledCode, *, keep: int, step: int) -> None:
        """Record ``attempt``, which begins at ``step``.

        Args:
            attempt: an attempt that has begun.
            compiled: torch.compile's cache, saved after each checkpoint.
            keep: number of newest checkpoints to keep, in addition to the best.
            step: optimizer steps done before; later checkpoints are set aside and later metrics are removed.
        """
        folder = attempt.folder
        self.attempt = attempt
        self._store = CheckpointStore(folder.checkpoints, keep=keep, check_owner=attempt.check)
        with writing(folder.path):
            self._store.set_aside_after(step)
            self._metrics = JsonLines(folder.metrics, step=step)
            self.clock = Clock(folder.goodput, attempt=attempt.number, step=step)
        self._trackers: Sequence[Background] = ()
        self._known = Counter(_place(record) for record in read_records(folder.metrics) if record["step"] == step)
        self._saver = Saver(self._store, compiled)
        self._sharded: ShardedSave | None = None
        """The save that awaits ``settle``."""
        self._keep = keep
        self._has_saved = False

    def start_trackers(self, names: Sequence[str], place: TrackedRun) -> None:
        """Start the trackers ``names``; each receives every record written to metrics.jsonl."""
        self._trackers = start_trackers(names, place)

    def write(self, record: Record) -> None:
        """Append a record to metrics.jsonl and pass it to the trackers; skip one that the file held at the start."""
        place = _place(record)
        if self._known[place]:
            self._known[place] -= 1
            return
        self._metrics.write(record)
        for tracker in self._trackers:
            tracker.write(record)

    def reserve(self, checkpoint: Checkpoint) -> None:
        """Allocate buffers for checkpoints like ``checkpoint``: pinned ones now, the others in the background."""
        self._saver.reserve(without_shards(checkpoint.tensors))

    def save(self, checkpoint: Checkpoint) -> None:
        """Save ``checkpoint`` in the background.

        Raises:
            LostFolderError: if this process no longer holds the run folder's lock.
        """
        self._prepare(checkpoint)
        self._saver.save(checkpoint)

    def begin_sharded(self, checkpoint: Checkpoint, ranks: int) -> Path:
        """Create and return the hidden folder to which all ranks write the shards of ``checkpoint``.

        Raises:
            LostFolderError: see ``save``.
            OSError: if the folder cannot be created.
        """
        self._prepare(checkpoint)
        self._saver.wait()
        self._sharded = ShardedSave(self._store.begin(checkpoint.header.position.step), checkpoint.tensors, ranks)
        return self._sharded.folder

    def save_sharded(self, checkpoint: Checkpoint) -> None:
        """Save ``checkpoint`` in the background, without its shards; ``settle`` lets the save end."""
        self._saver.save(replace(checkpoint, tensors=without_shards(checkpoint.tensors)), self._sharded)

    def settle(self, reports: list[Report]) -> None:
        """Publish the checkpoint of the last ``save_sharded`` in the background, given the ``reports`` of all ranks."""
        if self._sharded:
            self._sharded.settle(reports)
            self._sharded = None

    def _prepare(self, checkpoint: Checkpoint) -> None:
        self.attempt.check()
        if not self._has_saved:
            warn_if_low_space(checkpoint, self.attempt.folder.checkpoints, keep=self._keep, quota=self.attempt.quota)
            self._has_saved = True

    def report_not_saved(self, error: SlipwayError, *, step: int) -> None:
        """Warn that ``error`` prevents a save at ``step``; the attempt fails if no later save succeeds."""
        self._saver.fail(error, step=step)

    def finish(self) -> None:
        """Make everything durable.

        Raises:
            SlipwayError: if the last checkpoint could not be written.
            OSError: if the last records could not be written.
        """
        self._saver.finish()
        self._metrics.close()
        for tracker in self._trackers:
            tracker.end(complete=True)

    def wait(self) -> None:
        """Wait until no save is in progress."""
        self._saver.wait()

    def close(self) -> None:
        """Wait as ``wait`` does, and end trackers that are still running after an error.

        A save whose shards are not all known to be written is abandoned.
        """
        self.settle([])
        self.wait()
        for tracker in self._trackers:
            tracker.end(complete=False)

    def conclude(self, reason: Reason, *, step: int) -> Status:
        """Record that the attempt is done or stopped for ``reason`` at ``step``; call this after ``finish``."""
        self.clock.write(step, concluded=True)
        self.clock.close()
        return self.attempt.conclude(reason, step=step)


def _place(record: Record) -> tuple[Any, ...]:
    return record["kind"], record["step"], record.get("epoch"), *sorted(record)  # a test may follow a validation


def provenance(world: World, launched: Mapping[str, object]) -> dict[str, object]:
    """Return the provenance for run.json: start time, host, command, versions, world size and launch settings.

    Args:
        world: this rank's world.
        launched: the resolved settings of this launch.
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

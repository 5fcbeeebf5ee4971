"""Interface between ``Run`` and the program that trains in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from slipway.base.stop import Reason
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.run.metrics import Record
from slipway.run.status import Status


class Stopped(SystemExit):
    """All ranks have agreed to stop and the run is saved: the program exits with EXIT_STOPPED."""

    def __init__(self, code: int, reason: Reason) -> None:
        """Exit the program; a session raises this.

        Args:
            code: exit code: 0 under a launcher, which would treat any other code as a failure; 75 without a launcher
                or if the launcher has died.
            reason: stored as an attribute; ``reason.word`` is time-limit, user, signal, or launcher if the launcher
                has died.
        """
        super().__init__(code)
        self.reason = reason


@dataclass(frozen=True)
class Policy:
    """Intervals of records and checkpoints."""

    log_interval: int
    """Steps between two records."""
    checkpoint_steps: int | None
    """Steps between two checkpoints; None for no such interval."""
    checkpoint_minutes: float | None
    """Minutes between two checkpoints; None for no such interval."""


class Speed(NamedTuple):
    """Training speed since the last record."""

    steps_per_second: float
    save_seconds: float
    """Seconds for which saving blocked rank 0."""


class Program(Protocol):
    """A program that trains in a run: a user script with a session, or the trainer."""

    def local_counters(self) -> list[float]:
        """Return this rank's counters since the last call; the ranks add them in the vote."""
        ...

    def on_reduced(self, position: Position, sums: list[float]) -> Position:
        """Return ``position`` updated by ``sums``, the totals of the counters over all ranks.

        Raises:
            SlipwayError: on every rank, if training cannot continue.
        """
        ...

    def sync_step(self, step: int) -> int:
        """Gather the data of all ranks that a record or a checkpoint needs, and return the largest step of any rank.

        Raises:
            SlipwayError: on every rank, if training cannot continue.
        """
        ...

    def record(self, position: Position, speed: Speed) -> Record:
        """Return the record of training up to ``position`` at ``speed``, and print it."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return the facts that a checkpoint must store to resume from here; called on all ranks after ``sync_step``.

        Raises:
            SlipwayError: on every rank, if the current state must not be saved.
        """
        ...

    def capture(self, header: Header) -> Checkpoint:
        """Return a checkpoint of the training state; called also once before the first save.

        It is called only on rank 0, or on all ranks if the state is sharded.
        """
        ...

    def started(self, parts: Mapping[str, float]) -> None:
        """Receive the startup time in seconds, by part, after the first step; called on all ranks."""
        ...

    def write_results(self) -> None:
        """Write the further results of a run that is done; called only on rank 0."""
        ...

    def ended(self, status: Status) -> None:
        """Report how the attempt ended; called only on rank 0."""
        ...

"""What a run asks of the program that trains in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from slipway.base.status import Status
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.run.metrics import Record


class Speed(NamedTuple):
    """How fast training was since the last record."""

    steps_per_second: float
    save_seconds: float
    """For which saving held up rank 0."""


class Program(Protocol):
    """What trains in a run: a script with a session, or the trainer."""

    def sums(self) -> list[float]:
        """Return what this rank has counted since the last call."""
        ...

    def observed(self, position: Position, sums: list[float]) -> Position:
        """Take the totals of ``sums`` over all ranks, and return ``position`` with what they say of it.

        Raises:
            SlipwayError: on every rank, if training cannot go on.
        """
        ...

    def meet(self, step: int) -> int:
        """Exchange what a record or a checkpoint needs of all ranks, and return the step of the one that is furthest.

        Raises:
            SlipwayError: on every rank, if training cannot go on.
        """
        ...

    def record(self, position: Position, speed: Speed) -> Record:
        """Return the record of what was trained up to ``position``, at ``speed``, and show it."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what a checkpoint must say to continue from here; called on all ranks, behind ``meet``.

        Raises:
            SlipwayError: on every rank, if this is not to be saved.
        """
        ...

    def capture(self, header: Header) -> Checkpoint:
        """Return a checkpoint of all that trains; called on rank 0 alone, also once before the first is saved."""
        ...

    def started(self, parts: Mapping[str, float]) -> None:
        """Take the seconds up to the first step, by part; called on all ranks."""
        ...

    def write_results(self) -> None:
        """Write what a run that is done leaves besides; called on rank 0 alone."""
        ...

    def ended(self, status: Status) -> None:
        """Say how the attempt has ended; called on rank 0 alone."""
        ...

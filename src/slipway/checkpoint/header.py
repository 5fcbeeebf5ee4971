"""The header of a checkpoint: position in training, metric and facts, as they stand in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Position(NamedTuple):
    """A place in training, over all ranks. It does not change: Run counts the steps, and gives another one."""

    step: int = 0
    """Optimiser steps done."""
    epoch: int = 0
    """The epoch under way, counted from 0."""
    samples: int = 0
    """Samples of it consumed."""
    bad: int = 0
    """Samples among them that could not be read."""
    elapsed: float = 0.0
    """Seconds trained, over all attempts."""

    def with_observed(self, *, bad: int, seconds: float) -> Position:
        """Return the position with so many more bad samples and seconds."""
        return self._replace(bad=self.bad + bad, elapsed=self.elapsed + seconds)

    def next_epoch(self) -> Position:
        """Return the beginning of the next epoch."""
        return self._replace(epoch=self.epoch + 1, samples=0, bad=0)


SCHEMA = 2
"""Version of the manifest; raised when an older slipway could no longer read it."""

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Metric(NamedTuple):
    """A number by which the checkpoints of a run are compared."""

    name: str
    value: float
    maximize: bool = True
    """Whether larger is better."""

    def is_better_than(self, other: Metric) -> bool:
        """Compare two values of the same metric; equal ones are not better."""
        return self.value > other.value if self.maximize else self.value < other.value


class Header(NamedTuple):
    """Position, metric and facts of a checkpoint."""

    position: Position
    metric: Metric | None = None
    """None where nothing was evaluated at this position."""
    facts: Mapping[str, Any] = NOTHING
    """What the program that saved it needs besides, and what people may want to know."""
    trees: Mapping[str, Any] = NOTHING
    """By component, what its state holds besides tensors (``slipway.checkpoint.stateful``)."""


def to_manifest(header: Header) -> dict[str, Any]:
    """Return ``header`` as it stands in a manifest."""
    return {
        "schema": SCHEMA,
        "position": header.position._asdict(),
        "metric": header.metric and header.metric._asdict(),
        "facts": dict(header.facts),
        "trees": dict(header.trees),
    }


def from_manifest(manifest: Mapping[str, Any]) -> Header:
    """Return the header that a manifest holds.

    Raises:
        KeyError, TypeError: if it holds none.
    """
    metric = manifest["metric"]
    return Header(Position(**manifest["position"]), metric and Metric(**metric), manifest["facts"], manifest["trees"])

"""A checkpoint's header: position in training, metric and facts, and their form in the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple


class Position(NamedTuple):
    """Immutable position in training, over all ranks. Run counts the steps and creates new positions."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Current epoch, counted from 0."""
    samples: int = 0
    """Samples of this epoch consumed."""
    bad: int = 0
    """Consumed samples of this epoch that could not be read."""
    elapsed: float = 0.0
    """Seconds of training, over all attempts."""

    def with_added(self, *, bad: int, seconds: float) -> Position:
        """Return the position with ``bad`` more bad samples and ``seconds`` more seconds."""
        return self._replace(bad=self.bad + bad, elapsed=self.elapsed + seconds)

    def next_epoch(self) -> Position:
        """Return the beginning of the next epoch."""
        return self._replace(epoch=self.epoch + 1, samples=0, bad=0)


SCHEMA, SHARDED_SCHEMA = 2, 3
"""Versions of the manifest without and with sharded tensors; increased when an older slipway cannot read it."""

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Metric(NamedTuple):
    """A metric by which a run's checkpoints are compared."""

    name: str
    value: float
    maximize: bool = True
    """Whether larger is better."""

    def is_better_than(self, other: Metric) -> bool:
        """Return whether this value of the metric is better than ``other``; an equal value is not."""
        return self.value > other.value if self.maximize else self.value < other.value


class Header(NamedTuple):
    """Position, metric and facts of a checkpoint."""

    position: Position
    metric: Metric | None = None
    """None if nothing was evaluated at this position."""
    facts: Mapping[str, Any] = NOTHING
    """Further values that the program needs to resume, or that are informative."""
    trees: Mapping[str, Any] = NOTHING
    """By component, the part of its state that is not tensors (``slipway.checkpoint.stateful``)."""


def to_manifest(header: Header) -> dict[str, Any]:
    """Return the manifest's entries for ``header``."""
    return {
        "schema": SCHEMA,
        "position": header.position._asdict(),
        "metric": header.metric and header.metric._asdict(),
        "facts": dict(header.facts),
        "trees": dict(header.trees),
    }


def from_manifest(manifest: Mapping[str, Any]) -> Header:
    """Return a manifest's header.

    Raises:
        KeyError, TypeError: if the manifest holds no header.
    """
    metric = manifest["metric"]
    return Header(Position(**manifest["position"]), metric and Metric(**metric), manifest["facts"], manifest["trees"])

"""One epoch of training: the loop at the heart of it all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipway.position import Position
from slipway.stop import Reason
from trainer.data.loader import Batch
from trainer.learner import Learner
from trainer.monitor import Monitor


def train_epoch(
    learner: Learner,
    batches: Iterable[Batch],
    position: Position,
    *,
    monitor: Monitor,
    save: Callable[[Position], None],
) -> tuple[Reason, Position]:
    """Train on ``batches`` from ``position`` on, until they end or all ranks agree to stop; return why, and where."""
    bad = 0
    fresh = True
    monitor.start(position)
    for batch in batches:
        if fresh:
            learner.start_step(position, step_samples=batch.micro.step_samples)
        learner.backward(batch)
        bad += batch.bad
        fresh = batch.micro.last
        if not fresh:
            continue
        learner.step()
        position = position.advance(batch.micro.step_samples)
        if position.step == monitor.next_step:
            reason, position = monitor.check(position, bad)
            bad = 0
            if reason:
                return reason, position
            if monitor.checkpoint_due(position):
                save(position)
    return monitor.check(position, bad)

"""One epoch of training: the loop at the heart of it all."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slipway.stop import Reason
from trainer.checkpoint.state import Position
from trainer.data.loader import Batch
from trainer.learner import Learner
from trainer.monitor import Monitor


def train_epoch(
    learner: Learner,
    batches: Iterable[Batch],
    position: Position,
    *,
    monitor: Monitor,
    save: Callable[[], None],
) -> Reason:
    """Train on ``batches``, moving ``position`` along, until they end or all ranks agree to stop; return why."""
    bad = 0
    fresh = True
    monitor.start(position)
    for batch in batches:
        if fresh:
            learner.start_step(
                position.step,
                epoch=position.epoch,
                samples=position.samples,
                step_samples=batch.micro.step_samples,
            )
        learner.backward(batch)
        bad += batch.bad
        fresh = batch.micro.last
        if not fresh:
            continue
        learner.step()
        position.step += 1
        position.samples += batch.micro.step_samples
        if position.step == monitor.next_step:
            reason = monitor.meet(position, bad)
            bad = 0
            if reason:
                return reason
            if monitor.checkpoint_due(position):
                save()
    return monitor.meet(position, bad)

"""One epoch of training: the loop at the heart of it all."""

from __future__ import annotations

from collections.abc import Iterable

from slipway.run import Run
from trainer.data.loader import Batch, by_step
from trainer.learner import Learner


def train_epoch(
    learner: Learner, batches: Iterable[Batch], run: Run, *, samples: int, verify_interval: int | None
) -> None:
    """Train on ``batches``, the rest of an epoch of ``samples``.

    Args:
        learner: that trains.
        batches: of this rank.
        run: that counts the steps.
        samples: of an epoch, over all ranks.
        verify_interval: steps between two comparisons of the replicas; None for none.

    Raises:
        Stopped: if all ranks agree on that; everything is saved then.
    """
    for plan, micro_batches in by_step(batches):
        learner.start_step(run.position, step_samples=plan.step_samples)
        learner.backward(micro_batches, count=plan.total)
        learner.step()
        if verify_interval and (run.step + 1) % verify_interval == 0:
            learner.require_equal_replicas()
        is_last = run.samples + plan.step_samples == samples
        (run.count if is_last else run.advance)(plan.step_samples)
    run.end_batches()

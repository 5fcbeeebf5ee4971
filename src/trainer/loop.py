"""One epoch of training: the loop at the heart of it all."""

from __future__ import annotations

from collections.abc import Iterable

from slipway.run import Run
from trainer.data.loader import Batch, by_step
from trainer.learner import Learner


def train_epoch(learner: Learner, batches: Iterable[Batch], run: Run, *, samples: int) -> None:
    """Train on ``batches``, the rest of an epoch of ``samples``.

    Raises:
        Stopped: if all ranks agree on that; everything is saved then.
    """
    for plan, micro_batches in by_step(batches):
        learner.start_step(run.position, step_samples=plan.step_samples)
        learner.backward(micro_batches, count=plan.total)
        learner.step()
        is_last = run.samples + plan.step_samples == samples
        (run.count if is_last else run.advance)(plan.step_samples)
    run.end_batches()

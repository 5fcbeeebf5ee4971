"""One epoch of training: the loop at the heart of it all."""

from __future__ import annotations

from collections.abc import Iterable

from slipway.run import Run
from trainer.data.loader import Batch
from trainer.learner import Learner


def train_epoch(learner: Learner, batches: Iterable[Batch], run: Run, *, samples: int) -> None:
    """Train on ``batches``, the rest of an epoch of ``samples``.

    Raises:
        Stopped: if all ranks agree on that; everything is saved then.
    """
    fresh = True
    for batch in batches:
        if fresh:
            learner.start_step(run.position, step_samples=batch.micro.step_samples)
        learner.backward(batch)
        fresh = batch.micro.last
        if not fresh:
            continue
        learner.step()
        is_last = run.samples + batch.micro.step_samples == samples
        (run.count if is_last else run.advance)(batch.micro.step_samples)
    run.end_batches()

"""The training batches of a rank, from any position of any epoch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from slipway.base.environment import World
from slipway.base.files import LineFile
from slipway.checkpoint.header import Position
from trainer.config.settings import TrainConfig
from trainer.data.epoch import Epoch
from trainer.data.loader import Batch, Loader, Stopwatch
from trainer.data.micro_batches import largest_micro_batch, rank_steps


def global_batch_size(train: TrainConfig, ranks: int) -> int:
    """Return the number of samples per optimizer step, over all ranks and micro-steps."""
    return train.batch_size_per_rank * ranks if train.batch_size_per_rank else train.batch_size


def micro_batch_size(train: TrainConfig, ranks: int) -> int:
    """Return the number of samples in the largest micro-batch of any rank."""
    return largest_micro_batch(global_batch_size(train, ranks), size=ranks, micro_steps=train.grad_accum_steps)


class TrainingBatches:
    """Training batches in an order that depends on seed, epoch and position only."""

    def __init__(self, loader: Loader, train: TrainConfig, world: World) -> None:
        """Prepare to read the batches of this rank of ``world`` with ``loader``."""
        self._loader = loader
        self.batch_size = global_batch_size(train, world.size)
        self._world = world
        self._seed = train.seed
        self._micro_steps = train.grad_accum_steps
        self.waits = Stopwatch()
        """Measures how long training waits for data."""

    def of_epoch(self, *, epoch: int, start: int, steps: int | None) -> Iterator[Batch]:
        """Yield this rank's micro-batches of ``epoch`` from sample ``start`` on, for ``steps`` steps or to the end."""
        dataset = self._loader.dataset
        order = Epoch(len(dataset), seed=self._seed, epoch=epoch, draws=dataset.draws)
        plan = rank_steps(
            order,
            start=start,
            steps=steps,
            batch_size=self.batch_size,
            rank=self._world.rank,
            size=self._world.size,
            micro_steps=self._micro_steps,
        )
        return self.waits.timed(self._loader.batches(plan, draws=order.draws))


def recorded(batches: Iterator[Batch], path: Path, *, position: Position) -> Iterator[Batch]:
    """Yield ``batches``, which begin at ``position``, and append step, epoch and sample ids of each to ``path``."""
    step = position.step
    with contextlib.closing(LineFile(path)) as lines:
        for batch in batches:
            ids = batch.micro.ids.tolist() if batch.micro.counted else []
            lines.append(json.dumps({"step": step, "epoch": position.epoch, "ids": ids}))
            step += batch.micro.last
            yield batch

"""Exact evaluation: each sample counts once, for any world size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from slipway.data.device_batches import to_device
from slipway.dist.communicator import Communicator
from trainer.data.loader import NO_LABEL, Batch, Loader
from trainer.data.micro_batches import MicroBatch, rank_share


@dataclass(frozen=True)
class Evaluation:
    """Counts over the whole validation split."""

    confusion: Tensor
    """Number of samples by true class (rows) and predicted class (columns): int64 [classes, classes]."""
    loss_sum: float
    in_top5: int
    bad: int
    """Number of samples that could not be decoded; no other count includes them."""
    predicted: Tensor
    """Predicted class of each sample: int64 [limit]; NO_LABEL for a sample that could not be decoded."""

    @property
    def samples(self) -> int:
        """Number of samples evaluated."""
        return int(self.confusion.sum())

    @property
    def loss(self) -> float:
        """Mean cross-entropy, in nats."""
        return self.loss_sum / max(1, self.samples)

    @property
    def accuracy(self) -> float:
        """Share of samples whose most probable class is the true one (top-1)."""
        return int(self.confusion.trace()) / max(1, self.samples)

    @property
    def confused(self) -> list[tuple[int, int]]:
        """Wrong pairs (true class, predicted class): most samples first, ties by largest share of the true class."""
        counts = self.confusion - torch.diag(self.confusion.diagonal())
        totals = self.confusion.sum(1).tolist()
        cells = [(count, true, other) for true, row in enumerate(counts.tolist()) for other, count in enumerate(row)]
        ranked = sorted((cell for cell in cells if cell[0]), key=lambda cell: (-cell[0], totals[cell[1]], cell[1:]))
        return [(true, other) for _, true, other in ranked]

    @property
    def top5(self) -> float:
        """Share of samples whose true class is among the five most probable ones."""
        return self.in_top5 / max(1, self.samples)


class Classifier(Protocol):
    """Interface of a model to evaluate: a learner, or a model from a checkpoint."""

    @property
    def comm(self) -> Communicator:
        """The communicator of this rank."""
        ...

    @property
    def evaluated(self) -> nn.Module:
        """The unwrapped model."""
        ...

    def logits(self, images: Tensor) -> Tensor:
        """Return the model's logits for uint8 images [n, c, h, w]: [n, classes]."""
        ...

    def sync_buffers(self) -> None:
        """Broadcast rank 0's buffers to all ranks."""
        ...


Watch = Callable[[Iterable[Batch], int], Iterable[Batch]]
"""Wrap the iterator over a rank's batches, and may end the pass early; the number is the most batches of any rank."""


def evaluate(
    learner: Classifier, loader: Loader, *, batch_size: int, limit: int, watch: Watch | None = None
) -> Evaluation:
    """Evaluate the first ``limit`` samples of the loader's data set on all ranks together, ``batch_size`` at a time."""
    classes = len(loader.dataset.classes)
    world, device = learner.comm.world, learner.comm.device
    share = rank_share(limit, rank=world.rank, size=world.size)
    plan = [MicroBatch(share[i : i + batch_size], True, limit) for i in range(0, len(share), batch_size)]
    cells = torch.zeros(classes * classes, dtype=torch.int64, device=device)
    sums = torch.zeros(3, dtype=torch.float64, device=device)  # loss, in top 5, bad
    predicted_plus_one = torch.zeros(limit, dtype=torch.float64, device=device)  # 1 + the class; 0: no class
    learner.sync_buffers()
    learner.evaluated.eval()
    batches: Iterable[Batch] = loader.batches(plan)
    if watch:
        largest_share = -(-limit // world.size)
        batches = watch(batches, -(-largest_share // batch_size))
    for batch in batches:
        labels, logits = batch.labels, learner.logits(batch.images)
        ids = to_device(torch.from_numpy(batch.micro.ids), device)
        if batch.bad:
            counted = labels != NO_LABEL
            labels, logits, ids = labels[counted], logits[counted], ids[counted]
        ranked = logits.topk(min(5, classes)).indices
        cells += torch.bincount(labels * classes + ranked[:, 0], minlength=classes * classes)
        sums[0] += F.cross_entropy(logits, labels, reduction="sum")
        sums[1] += (ranked == labels[:, None]).sum()
        sums[2] += batch.bad
        predicted_plus_one[ids] = 1.0 + ranked[:, 0].double()
    learner.evaluated.train()
    # Counts are exact in float64 up to 2**53, and every library can reduce that type.
    total = learner.comm.all_reduce_sum(torch.cat([sums, cells.to(torch.float64)])).cpu()
    predicted = learner.comm.all_reduce_sum(predicted_plus_one).cpu().to(torch.int64) - 1
    return Evaluation(
        confusion=total[3:].to(torch.int64).view(classes, classes),
        loss_sum=float(total[0]),
        in_top5=int(total[1]),
        bad=int(total[2]),
        predicted=predicted.masked_fill(predicted < 0, NO_LABEL),
    )

"""Data parallelism for a model in stages: each rank has a replica, and gradients are averaged once per step.

DistributedDataParallel reduces during the backward pass and expects one for each forward pass, but a pipeline has many
passes in flight. So the ranks' communicator averages the gradients after all of a step's passes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from slipway.dist.communicator import Communicator

BUCKET = 1 << 25
"""Approximate bytes of gradients per reduction."""


class StagesStrategy:
    """Strategy for a split model on the ranks that a backend has connected (trainer.parallel.strategy.Strategy)."""

    def __init__(self, name: str) -> None:
        """Average over the communicator of the backend ``name``."""
        self.name = name
        self._comm: Communicator | None = None

    def prepare(
        self,
        comm: Communicator,
        model: nn.Module,
        optimizer: Optimizer,
        warm_up: Callable[[nn.Module], None],  # noqa: ARG002 -- needs no warm-up
    ) -> tuple[nn.Module, Optimizer]:
        """Broadcast rank 0's weights and buffers to all ranks; return model and optimizer."""
        self._comm = comm
        comm.broadcast([tensor.detach() for tensor in (*model.parameters(), *model.buffers())])
        return model, optimizer

    def no_sync(self, replica: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing: backward passes do not reduce gradients here."""
        return nullcontext()

    @contextmanager
    def synchronized_gradients(self, optimizer: Optimizer) -> Iterator[None]:
        """Average the gradients over the ranks."""
        assert self._comm
        if self._comm.world.size > 1:
            gradients = [
                parameter.grad
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter.grad is not None
            ]
            for bucket in _buckets(gradients):
                self._average(bucket, self._comm)
        yield

    @staticmethod
    def _average(gradients: list[Tensor], comm: Communicator) -> None:
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        total = comm.all_reduce_sum(flat).div_(comm.world.size)
        for gradient, part in zip(gradients, total.split([gradient.numel() for gradient in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))


def _buckets(gradients: list[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of gradients with the same device and dtype, of about BUCKET bytes each."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
    for gradient in gradients:
        bucket = alike[gradient.device, gradient.dtype]
        bucket.append(gradient)
        if sum(tensor.nbytes for tensor in bucket) >= BUCKET:
            yield bucket
            alike[gradient.device, gradient.dtype] = []
    yield from filter(None, alike.values())

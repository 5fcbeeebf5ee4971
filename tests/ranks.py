"""Ranks without processes: threads that reduce with each other, or one rank whose others are not here."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from slipway.base.environment import World
from slipway.dist.communicator import Alone, Communicator

T = TypeVar("T")
CPU = torch.device("cpu")


class OneOf(Alone):
    """A rank of ``world`` whose others are not here: what it reduces stays what it was."""

    def __init__(self, world: World) -> None:
        super().__init__(CPU)
        self.world = world


class _Thread:
    """A rank that speaks with the others over a list."""

    def __init__(self, world: World, barrier: threading.Barrier, messages: list) -> None:
        self.world, self.device = world, CPU
        self._barrier, self._messages = barrier, messages

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        return torch.stack(self._exchange(values.clone())).sum(0, dtype=values.dtype)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        sent = self._exchange([tensor.clone() for tensor in tensors])[0]
        for tensor, value in zip(tensors, sent, strict=True):
            tensor.copy_(value)

    def close(self) -> None:
        pass

    def _exchange(self, message):
        """Return what all ranks hand over, in the order of the ranks."""
        self._messages[self.world.rank] = message
        self._barrier.wait()
        messages = list(self._messages)
        self._barrier.wait()  # nobody writes the next message before all have read this one
        return messages


def on_ranks(size: int, action: Callable[[Communicator], T]) -> list[T]:
    """Run ``action`` on ``size`` ranks at once, and return what it returned on each."""
    barrier, messages = threading.Barrier(size, timeout=300), [None] * size
    ranks = [_Thread(World(rank, size, rank, size), barrier, messages) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(action, rank) for rank in ranks]]

"""Ranks without processes: threads that reduce with each other, or one rank without its peers."""

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
    """A rank of ``world`` without its peers: a reduction leaves values unchanged."""

    def __init__(self, world: World) -> None:
        super().__init__(CPU)
        self.world = world


class _Thread:
    """A rank that exchanges messages with the others through a list."""

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
        """Return the messages of all ranks, in rank order."""
        self._messages[self.world.rank] = message
        self._barrier.wait()
        messages = list(self._messages)
        self._barrier.wait()  # no rank writes the next message before all have read this one
        return messages


def on_ranks(size: int, action: Callable[[Communicator], T]) -> list[T]:
    """Run ``action`` on ``size`` ranks concurrently and return the result of each."""
    barrier, messages = threading.Barrier(size, timeout=300), [None] * size
    ranks = [_Thread(World(rank, size, rank, size), barrier, messages) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return [future.result() for future in [pool.submit(action, rank) for rank in ranks]]

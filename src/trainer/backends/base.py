"""The trainer's one seam: what a backend does, and nothing that it is."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trainer.errors import ConfigError
from trainer.gpu import check_gpus
from trainer.world import World


class Backend(Protocol):
    """One rank's end of a group of processes that train one model."""

    name: str
    """Its value of --backend."""
    world: World
    device: torch.device

    def prepare(
        self, model: nn.Module, optimizer: Optimizer, rehearse: Callable[[nn.Module], None]
    ) -> tuple[nn.Module, Optimizer]:
        """Return the replica to call and the optimiser to step, equal on all ranks to rank 0's.

        ``rehearse(replica)`` runs one forward and backward pass and leaves no trace in the model; a backend that only
        settles its communication during a first pass calls it, so that later passes are all alike.
        """
        ...

    def accumulate(self, replica: nn.Module) -> AbstractContextManager[None]:
        """Within it, backward passes add to this rank's gradients without any reduction."""
        ...

    def reduced_gradients(self, optimizer: Optimizer) -> AbstractContextManager[None]:
        """Within it, every ``.grad`` is the mean over the world: to unscale, clip and step."""
        ...

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of ``values`` over all ranks; any shape, a dtype the library reduces (float32, float64)."""
        ...

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Overwrite ``tensors``, of the same shapes and dtypes on all ranks, with rank 0's."""
        ...

    def close(self) -> None:
        """Leave the group, after success only: a peer that failed can no longer answer."""
        ...


def pick_device(requested: str, *, local_rank: int) -> torch.device:
    """Return this rank's device.

    A launcher that binds ranks to GPUs leaves each just one, numbered 0; otherwise the local rank is the number.

    Raises:
        ConfigError: if GPUs are asked for and there are too few, or torch cannot use those that are there.
    """
    if requested != "cpu":
        check_gpus()
    count = torch.cuda.device_count() if requested != "cpu" else 0
    if count == 0:
        if requested == "cuda":
            raise ConfigError("--device cuda, but torch sees no GPU here: is the driver passed in (apptainer --nv)?")
        return torch.device("cpu")
    # A launcher on one machine leaves all GPUs to all its ranks; a scheduler may have bound each rank to one.
    unbound = count > 1 or "TORCHELASTIC_RUN_ID" in os.environ or "TRAINER_SPAWNED" in os.environ
    if unbound and local_rank >= count:
        raise ConfigError(f"local rank {local_rank} has no GPU, torch sees {count}: start at most one rank per GPU.")
    device = torch.device("cuda", 0 if count == 1 else local_rank)
    torch.cuda.set_device(device)
    return device


def count_alike(key: str, *, rank: int, size: int, total: Callable[[Tensor], Tensor], device: torch.device) -> int:
    """Return how many ranks give the same ``key``; all must call it, and ``total`` sums over them."""
    digests = torch.zeros(size, dtype=torch.float64, device=device)
    digests[rank] = int.from_bytes(hashlib.sha256(key.encode()).digest()[:6])  # 48 bits: exact in float64
    digests = total(digests)
    return int((digests == digests[rank]).sum())

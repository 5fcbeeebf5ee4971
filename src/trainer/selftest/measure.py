"""Selftest measurements of one rank: placement, versions, speed and an all-reduce."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import slipway
from slipway.base.gpu import find_gpus
from slipway.dist.collectives import count_equal
from slipway.dist.communicator import Communicator
from trainer.config.settings import ModelConfig
from trainer.model import build_model
from trainer.parallel.device import now
from trainer.parallel.strategy import torch_backend

SHAPE, CLASSES = (1, 28, 28), 10
BATCH = {"cpu": 32, "cuda": 8192}
"""Images per forward pass. A pass takes some ten milliseconds: long compared with clock resolution and time slices."""
PASSES = 20
REDUCED = 1 << 20
"""Number of float32 values in the all-reduce: 4 MB."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Placement, software versions and speed of one rank."""

    host: str
    rank: int
    local_rank: int
    device: str
    gpu: str
    """The GPU's name, compute capability and driver; "" on a CPU."""
    cpus: list[int]
    """Numbers of the CPUs that the rank may use."""
    threads: int
    python: str
    torch: str
    trainer: str
    """Digest of the source files of the trainer and slipway."""
    forward_ms: float
    """Time of a small network's forward pass: the fastest, so that occasional load does not count as a fault."""
    reduced: float
    """Result of an all-reduce (sum) of 1 + rank."""
    reduce_ms: float
    """Time of the all-reduce; negative: not run, because ranks on GPUs and on CPUs share no communication library."""

    def __str__(self) -> str:
        """Return the line that the rank prints."""
        device = f"{self.device} ({self.gpu})" if self.gpu else self.device
        reduction = "none" if self.reduce_ms < 0 else f"{self.reduced:g} in {self.reduce_ms:.1f} ms"
        return (
            f"{self.host}: rank {self.rank}, local rank {self.local_rank}, {device}, {self.threads} thread(s) on "
            f"{len(self.cpus)} CPU(s), forward {self.forward_ms:.1f} ms, all-reduce {reduction}, Python {self.python}, "
            f"torch {self.torch}, trainer {self.trainer}"
        )


def measure(dist_backend: str, comm: Communicator) -> Facts:
    """Measure this rank; all ranks must call this, because it runs an all-reduce, over --dist-backend."""
    world, device = comm.world, comm.device
    alike = count_equal(comm, device.type, torch.device("cpu"))
    reduced, reduce_ms = _reduction(dist_backend, comm) if alike == world.size else (0.0, -1.0)
    return Facts(
        host=socket.gethostname(),
        rank=world.rank,
        local_rank=world.local_rank,
        device=str(device),
        gpu=_gpu(device),
        cpus=sorted(os.sched_getaffinity(0)),
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
        trainer=_sources(),
        forward_ms=time_forward(device),
        reduced=reduced,
        reduce_ms=reduce_ms,
    )


def _gpu(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    major, minor = torch.cuda.get_device_capability(device)
    gpus = find_gpus()
    driver = f", driver for CUDA {gpus.cuda[0]}.{gpus.cuda[1]}" if gpus else ""
    return f"{torch.cuda.get_device_name(device)}, compute capability {major}.{minor}{driver}"


def time_forward(device: torch.device) -> float:
    """Return the time of the fastest of some forward passes on ``device``, in milliseconds."""
    model = build_model(ModelConfig(), shape=SHAPE, classes=CLASSES).to(device).eval()
    images = torch.zeros(BATCH[device.type], *SHAPE, device=device)
    with torch.no_grad():
        model(images)  # warm-up: allocates memory and selects kernels
        return min(_timed(lambda: model(images), device)[1] for _ in range(PASSES))


def _reduction(dist_backend: str, comm: Communicator) -> tuple[float, float]:
    """Return the result of an all-reduce over training's communication library, and its time in milliseconds."""
    total = comm.all_reduce_sum
    if dist.is_initialized():
        group = dist.new_group(backend=torch_backend(dist_backend, comm.device))

        def total(values: Tensor) -> Tensor:
            dist.all_reduce(values, group=group)
            return values

    values = torch.full((REDUCED,), 1.0 + comm.world.rank, device=comm.device)
    total(torch.zeros_like(values))  # warm-up: connects and synchronizes the ranks
    result, milliseconds = _timed(lambda: total(values), comm.device)
    wrong = result[result != result[0]]
    return float(wrong[0] if len(wrong) else result[0]), milliseconds


def _timed(action: Callable[[], Tensor], device: torch.device) -> tuple[Tensor, float]:
    start = now(device)
    result = action()
    return result, 1000 * (now(device) - start)


def _sources() -> str:
    """Return a digest of the installed source files: a version number does not distinguish checkouts."""
    digest = hashlib.sha256()
    for package in (Path(slipway.__file__).parent, Path(__file__).parents[1]):
        for path in sorted(package.rglob("*.py")):
            name = path.relative_to(package.parent)
            digest.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]

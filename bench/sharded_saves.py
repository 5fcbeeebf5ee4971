"""``torchrun --standalone --nproc-per-node 2 bench/sharded_saves.py [--rounds N]``: checkpoints of a model under FSDP.

A model of 4 million weights trains with Adam, sharded by ``fully_shard``, with one thread a rank over Gloo; its state
has 51 MB. A session saves it in the background, and so does ``dcp.async_save``; ``torch.save`` and fsync write the
whole on rank 0, after gathering it. The steps between two checkpoints take three times as long as a write.

It prints a checkpoint's stall (its longest step, on the slowest rank, minus the median step), the bytes of a
checkpoint on disk, and by how much the memory of each rank grows beyond that of training without checkpoints.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from comparison import Comparison, Cost, Measure, compare_all, show
from saves import LEAST, SAVES, TINY, WIDTH, WRITES
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

AIMS = {"session": {"torch.save of the whole, and fsync": 10.0, "dcp.async_save": 1.0}}
"""The factor by which a stall should be shorter."""

State = tuple[nn.Module, torch.optim.Optimizer, Tensor]
Training = Callable[[Path, State, int], list[float]]
"""Trains with a checkpoint at each interval in a folder; returns the ms of each step."""


def build(width: int) -> State:
    """Return the sharded model, its optimizer, and an input."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(width // 2, width // 2, bias=False) for _ in range(4)))
    for layer in layers:
        fully_shard(layer)
    model = fully_shard(layers)
    return model, torch.optim.Adam(model.parameters(), lr=1e-6), torch.randn(1, width // 2)


def timed(numbers: Iterable[int], state: State) -> list[float]:
    """Train a step for each of ``numbers``; return the ms of each step, with what yields its number."""
    model, optimizer, inputs = state
    times = []
    before = time.perf_counter()
    for _ in numbers:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        now = time.perf_counter()
        times.append(1e3 * (now - before))
        before = now
    return times


def without_checkpoints(_folder: Path, state: State, interval: int) -> list[float]:
    """Train only."""
    return timed(range((SAVES + 1) * interval), state)


def in_session(folder: Path, state: State, interval: int) -> list[float]:
    """Train in a session that saves."""
    from slipway import Session  # noqa: PLC0415 -- from this checkout, see above

    model, optimizer, _ = state
    with Session(
        model=model,
        optimizer=optimizer,
        folder=folder,
        checkpoint_steps=interval,
        checkpoint_minutes=None,
        keep=SAVES + 1,
    ) as session:
        return timed(session.steps((SAVES + 1) * interval), state)


def by_dcp(folder: Path, state: State, interval: int) -> list[float]:
    """Save with ``dcp.async_save`` in the loop, after the previous save has ended."""
    model, optimizer, _ = state
    group = dist.new_group(backend="gloo")  # its thread must not use that of the gradients
    pending: list[Future[Any]] = []

    def save(step: int) -> None:
        for future in pending:
            future.result()
        own, moments = get_state_dict(model, optimizer)
        content = {"model": own, "optimizer": moments}
        pending[:] = [dcp.async_save(content, checkpoint_id=folder / str(step), process_group=group)]

    times = timed(_saving(save, interval), state)
    pending[0].result()
    return times


def by_torch_save(folder: Path, state: State, interval: int) -> list[float]:
    """Gather the whole on rank 0, and save it there with ``torch.save`` in the loop."""
    model, optimizer, _ = state

    def save(step: int) -> None:
        _save(folder / str(step), model, optimizer)

    return timed(_saving(save, interval), state)


def _save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    own, moments = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        folder.mkdir()
        with (folder / "all.pt").open("wb") as file:
            torch.save({"model": own, "optimizer": moments}, file)
            file.flush()
            os.fsync(file.fileno())
    dist.barrier()


def _saving(save: Callable[[int], None], interval: int) -> Iterator[int]:
    for step in range((SAVES + 1) * interval):
        if step and step % interval == 0:
            save(step)
        yield step


def interval_for(width: int) -> int:
    """Return the number of steps between two checkpoints, the same on all ranks."""
    state = build(width)
    step = statistics.median(timed(range(LEAST), state)[1:])
    with shared_folder() as folder:
        began = time.perf_counter()
        _save(folder / "0", *state[:2])
        write = 1e3 * (time.perf_counter() - began)
    return int(agreed(max(LEAST, math.ceil(WRITES * write / step))))


class shared_folder:  # noqa: N801 -- a context manager
    """A temporary folder, the same on all ranks."""

    def __enter__(self) -> Path:
        """Create it on rank 0."""
        self._own = tempfile.TemporaryDirectory() if dist.get_rank() == 0 else None
        name = [self._own.name if self._own else None]
        dist.broadcast_object_list(name)
        return Path(str(name[0]))

    def __exit__(self, *_error: object) -> None:
        """Remove it, when no rank uses it anymore."""
        dist.barrier()
        if self._own:
            self._own.cleanup()


def agreed(value: float) -> float:
    """Return the maximum of ``value`` over the ranks."""
    tensor = torch.tensor(float(value), dtype=torch.float64)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return tensor.item()


def memory(field: str) -> float:
    """Return a field of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1e3


def measured(train: Training, width: int, interval: int) -> tuple[list[float], float, list[float]]:
    """Return the stalls on the slowest rank in ms, a checkpoint's size in MB, and the growth of each rank in MB."""
    state = build(width)
    with shared_folder() as folder:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM, the peak, begins anew
        before = memory("VmRSS")
        times = train(folder, state, interval)
        grown: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(grown, memory("VmHWM") - before)
        dist.barrier()
        places = [*(folder / "checkpoints").glob("step_*")] or [*folder.glob("[0-9]*")]
        size = sum(file.stat().st_size for file in places[-1].rglob("*")) / 1e6 if places else 0.0
    median = statistics.median(times)
    windows = [times[begin : begin + interval] for begin in range(interval, (SAVES + 1) * interval, interval)]
    return [agreed(max(window) - median) for window in windows], agreed(size), grown


def comparisons(rounds: int = 4, *, tiny: bool = False) -> list[Comparison]:
    """Compare the three; all ranks must call this."""
    width = TINY if tiny else WIDTH // 2
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    interval = interval_for(width)
    _, _, base = measured(without_checkpoints, width, interval)
    share = f"{12 * width**2 / 1e6 / dist.get_world_size():.0f} MB a rank"
    measures = [
        Measure(f"stall by a checkpoint, every {interval} steps", "ms by the clock", {} if tiny else AIMS),
        Measure("size of a checkpoint on disk", "MB"),
        *(
            Measure(f"memory of rank {rank} besides that of training, for a state of {share}", "MB")
            for rank in range(dist.get_world_size())
        ),
    ]

    def turn(train: Training) -> list[Cost]:
        stalls, size, grown = measured(train, width, interval)
        more = [Cost(max(1.0, own - without)) for own, without in zip(grown, base, strict=True)]
        return [Cost(statistics.median(stalls)), Cost(size), *more]

    contenders = {
        "torch.save of the whole, and fsync": by_torch_save,
        "dcp.async_save": by_dcp,
        "session": in_session,
    }
    return compare_all(measures, {name: partial(turn, train) for name, train in contenders.items()}, rounds=rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="a small model, to test the program")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    found = comparisons(arguments.rounds, tiny=arguments.tiny)
    if dist.get_rank() == 0:
        show(found)
    dist.destroy_process_group()

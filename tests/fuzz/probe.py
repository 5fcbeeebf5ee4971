"""Module that the fuzzer's scripts import: kill points, a trace of computed values, and data.

Without FUZZ_TRACE nothing is traced, and without FUZZ_KILL nothing is killed: the script then runs as any other.
"""

import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, get_worker_info

RANK = int(os.environ.get("RANK", "0"))
RANKS = int(os.environ.get("WORLD_SIZE", "1"))
FOLDER = Path(os.environ.get("RUN_DIR", "runs/fuzz"))
WIDTH = 4
"""Numbers in a sample; the first is its index."""


class BrokenError(Exception):
    """An error of the script."""


class Probe:
    """Counts the points that this process passes, and ends it at one of them."""

    def __init__(self) -> None:
        trace, kill = os.environ.get("FUZZ_TRACE"), os.environ.get("FUZZ_KILL", "")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(f"{trace}.{RANK}", flags, 0o644) if trace else None
        self._pid = os.getpid()
        self.passed = 0
        self.renamed = {"rename": 0, "latest": 0}
        self._way, self._at, self._rename_at = "", 0, ("", 0)
        rank, _, rest = kill.rpartition(":")
        if rest and int(rank or 0) == RANK:
            self._way, _, at = rest.partition("@")
            if at.isdigit():
                self._at = int(at)
            else:
                self._rename_at = at[:6], int(at[6:])
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple) -> None:
        """Count the renames that move checkpoints, records and states. At a kill the rename does not happen."""
        if event != "os.rename" or os.getpid() != self._pid:
            return
        for name in ("rename", "latest") if str(args[1]).endswith("latest") else ("rename",):
            self.renamed[name] += 1
            if self._rename_at == (name, self.renamed[name]):
                self.write("killed", [self._way, f"{name} {self.renamed[name]}"])
                os.kill(self._pid, signal.SIGKILL)

    def point(self, name: str) -> None:
        if os.getpid() != self._pid:
            return
        self.passed += 1
        if self.passed != self._at:
            return
        self.write("killed", [self._way, name])
        if self._way == "STOP":
            for folder in (FOLDER, *FOLDER.glob("fold*")):
                (folder / "STOP").write_text("user\n")
        elif self._way == "RAISE":
            raise BrokenError(name)
        elif self._way == "EXIT":
            sys.exit(3)
        else:
            os.kill(self._pid, signal.Signals[f"SIG{self._way}"])

    def write(self, site: str, entry: object) -> None:
        if self._file is not None:
            os.write(self._file, json.dumps([site, entry]).encode() + b"\n")


_probe = Probe()


def point(name: str) -> None:
    """Mark a point of the script at which this attempt may be killed."""
    _probe.point(name)


def trace(site: str, *place: int, **values: object) -> None:
    """Record a value computed at a position of the run: the same in each attempt that reaches it."""
    _probe.write(site, [list(place), {name: summary(value) for name, value in values.items()}])


def ended() -> None:
    """Record that the script has reached its end, and how many points it has passed."""
    _probe.write("ended", [_probe.passed, _probe.renamed["rename"], _probe.renamed["latest"]])


def summary(value: object) -> object:
    """Return a value as JSON that differs for different values."""
    for kind, summarize in SUMMARIES:
        if isinstance(value, kind):
            return summarize(value)
    return digest(summary(value.state_dict())) if hasattr(value, "state_dict") else repr(value)


def summary_of_tensor(tensor: torch.Tensor) -> object:
    if tensor.numel() <= WIDTH:
        return [repr(number) for number in tensor.detach().flatten().tolist()]
    return hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:12]


def summary_of_model(model: nn.Module) -> object:
    state = {name.removeprefix("module."): tensor for name, tensor in model.state_dict().items()}
    return digest([summary(state), [parameter.requires_grad for parameter in model.parameters()]])


SUMMARIES = [
    (torch.Tensor, summary_of_tensor),
    (nn.Module, summary_of_model),
    (dict, lambda value: {str(key): summary(item) for key, item in value.items()}),
    ((list, tuple), lambda value: [summary(item) for item in value]),
    (torch.Generator, lambda value: digest(value.get_state().tolist())),
    (np.random.Generator, lambda value: digest(repr(value.bit_generator.state))),
    (random.Random, lambda value: digest(repr(value.getstate()))),
]


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def draw(kind: str) -> float:
    """Draw from a global generator."""
    return {"torch": lambda: torch.rand(()).item(), "numpy": np.random.rand, "python": random.random}[kind]()


def table(count: int, first: int = 0) -> torch.Tensor:
    """Return samples: float32 [count, WIDTH]."""
    found = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(first + 1))
    found[:, 0] = torch.arange(first, first + count) / 64
    return found


class Samples(Dataset):
    """Samples by number, with noise of a global generator if wanted."""

    def __init__(self, count: int, *, first: int = 0, noise: str = "") -> None:
        self.table, self.noise = table(count, first), noise
        self.scale = 1.0

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, number):
        if isinstance(number, list):
            return torch.stack([self[each] for each in number])
        sample = self.table[number] * torch.tensor([1.0, self.scale, self.scale, self.scale])
        if self.noise:
            sample[1] += draw(self.noise)
        return sample


class Stream(IterableDataset):
    """The same samples one after another, divided among workers."""

    def __init__(self, samples: Samples) -> None:
        self.samples = samples

    def __iter__(self):
        worker = get_worker_info()
        first, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        for number in range(first, len(self.samples), stride):
            yield self.samples[number]


class Counters(dict):
    """Numbers that a script counts and a session restores."""

    state_dict = dict.copy
    load_state_dict = dict.update


def objective(output: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    return (output - batch[:, 1:2]).pow(2).mean()

"""``python bench/session.py [--steps N] [--rounds N]``: what a step costs more in a session than in a bare loop.

Each contender trains the same small model on the same batches, on one CPU thread, and logs its loss; they take turns,
in an order that is drawn anew each round. Printed are the median µs per step over the bare loop, its spread over
the rounds, and the ratio to Fabric's. A second bare loop among them shows the noise: above 5 µs the run is void, and
the exit code is 1. Contenders that are not installed are left out (ignite is in no environment of this project).
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import logging
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCHES = [torch.randn(8, 16) for _ in range(100)]
LOG_INTERVAL = 50
WARM_UP = 50
"""Steps of each run that are not timed."""


class Batches(Dataset[Tensor]):
    """So many batches, which take the time from the first that counts to the last."""

    def __init__(self, steps: int) -> None:
        """Be ``steps`` batches, after some more to warm up."""
        self._last = WARM_UP + steps
        self._start = 0.0
        self.seconds = 0.0

    def __len__(self) -> int:
        """Return how many there are."""
        return self._last + 1

    def __getitem__(self, number: int) -> Tensor:
        """Return one."""
        if number == WARM_UP:
            self._start = time.perf_counter()
        if number == self._last:
            self.seconds = time.perf_counter() - self._start
        return BATCHES[number % len(BATCHES)]


Contender = Callable[[DataLoader[Tensor], str], object]
"""Trains on the batches; what it writes goes into the folder."""


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model of one layer, and its optimiser: what they compute takes no time."""
    model = nn.Linear(16, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def bare(batches: DataLoader[Tensor], _folder: str) -> None:
    """Train without a library; the loss is read now and then."""
    model, optimizer = parts()
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        if number % LOG_INTERVAL == 0:
            loss.item()


def session(batches: DataLoader[Tensor], folder: str) -> None:
    """Train in a session: everything it offers is on."""
    from slipway import Session  # noqa: PLC0415 -- each contender imports its own

    model, optimizer = parts()
    with Session(model=model, optimizer=optimizer, folder=folder, log_interval=LOG_INTERVAL) as session:
        for _ in session.epochs(1):
            for batch in session.batches(batches):
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                session.log(loss=loss)


def fabric(batches: DataLoader[Tensor], folder: str) -> None:
    """Train under Lightning Fabric: model and optimiser wrapped, nothing saved."""
    from lightning.fabric import Fabric  # noqa: PLC0415
    from lightning.fabric.loggers import CSVLogger  # noqa: PLC0415

    fabric = Fabric(accelerator="cpu", devices=1, loggers=CSVLogger(folder, flush_logs_every_n_steps=1))
    model, optimizer = fabric.setup(*parts())
    for number, batch in enumerate(batches):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        fabric.backward(loss)
        optimizer.step()
        if number % LOG_INTERVAL == 0:
            fabric.log("loss", loss, step=number)


def accelerate(batches: DataLoader[Tensor], _folder: str) -> None:
    """Train under Accelerate: model and optimiser wrapped, nothing saved."""
    from accelerate import Accelerator  # noqa: PLC0415

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*parts())
    for number, batch in enumerate(batches):
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
        if number % LOG_INTERVAL == 0:
            accelerator.log({"loss": loss.item()})


def ignite(batches: DataLoader[Tensor], _folder: str) -> None:
    """Train under ignite, with a running average of the loss."""
    from ignite.engine import Engine, Events  # noqa: PLC0415
    from ignite.metrics import RunningAverage  # noqa: PLC0415

    model, optimizer = parts()

    def step(_engine: object, batch: Tensor) -> float:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    engine = Engine(step)
    RunningAverage(output_transform=lambda loss: loss).attach(engine, "loss")
    engine.add_event_handler(
        Events.ITERATION_COMPLETED(every=LOG_INTERVAL), lambda engine: engine.state.metrics["loss"]
    )
    engine.run(batches, max_epochs=1)


def lightning(batches: DataLoader[Tensor], folder: str) -> None:
    """Train under Lightning's Trainer, with its own log and nothing saved."""
    import lightning as L  # noqa: PLC0415 -- as its users write
    from lightning.pytorch.loggers import CSVLogger  # noqa: PLC0415

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, _ = parts()

        def training_step(self, batch: Tensor) -> Tensor:
            loss: Tensor = self.model(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        log_every_n_steps=LOG_INTERVAL,
        logger=CSVLogger(folder, flush_logs_every_n_steps=1),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), batches)


def installed() -> dict[str, Contender]:
    """Return the contenders whose library is there."""
    needed = {
        "bare, again": (bare, "torch"),
        "session": (session, "slipway"),
        "Fabric": (fabric, "lightning"),
        "ignite": (ignite, "ignite"),
        "Accelerate": (accelerate, "accelerate"),
        "Lightning": (lightning, "lightning"),
    }
    return {name: train for name, (train, library) in needed.items() if importlib.util.find_spec(library)}


def time_step(train: Contender, steps: int) -> float:
    """Return the µs of a step."""
    gc.collect()  # nobody pays for what the one before has left
    batches = Batches(steps)
    with tempfile.TemporaryDirectory() as folder:
        train(DataLoader(batches, batch_size=None), folder)
    return batches.seconds / steps * 1e6


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("slipway", "lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    contenders = {"bare": bare, **installed()}
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(args.rounds + 1):
        shuffle(order)
        for name in order:
            microseconds = time_step(contenders[name], args.steps)
            if number:  # the first round imports and warms up
                found[name].append(microseconds)
    print(f"bare: {statistics.median(found['bare']):.1f} µs a step; {args.rounds} rounds of {args.steps} steps")
    over = {
        name: [mine - theirs for mine, theirs in zip(found[name], found["bare"], strict=True)]
        for name in contenders
        if name != "bare"
    }
    peer = statistics.median(over["Fabric"]) if "Fabric" in over else None
    for name, values in over.items():
        low, high = statistics.quantiles(values, n=4)[::2]
        ratio = f"  {statistics.median(values) / peer:5.2f} of Fabric's" if peer else ""
        print(f"{name:>12}  {statistics.median(values):+7.1f} µs  ({low:+.1f} to {high:+.1f}){ratio}")
    noise = abs(statistics.median(over["bare, again"]))
    if noise > 5:  # noqa: PLR2004 -- µs, as the docstring says
        print(f"void: two bare loops differ by {noise:.1f} µs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    sys.exit(main())

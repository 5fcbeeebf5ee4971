"""``python bench/session.py [--steps N] [--rounds N]``: what a step costs more in a session than in a bare loop.

Each contender trains the same small model on the same batches, on one CPU thread, and logs its loss; they take turns,
in an order that is turned around each round. Printed are the median µs per step over the bare loop, its spread over
the rounds, and the ratio to Fabric's. A second bare loop among them shows the noise: above 5 µs the run is void, and
the exit code is 1. Contenders that are not installed are left out (ignite is in no environment of this project).
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

BATCHES = [torch.randn(8, 16) for _ in range(100)]
LOG_INTERVAL = 50
Contender = Callable[[int], float]


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model of one layer, and its optimiser: a step of some 100 µs."""
    model = nn.Linear(16, 1)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def batches(steps: int) -> Iterator[Tensor]:
    """Yield so many batches."""
    for number in range(steps):
        yield BATCHES[number % len(BATCHES)]


def bare(steps: int) -> float:
    """Train without a library; the loss is read now and then."""
    model, optimizer = parts()
    start = time.perf_counter()
    for number, batch in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        if number % LOG_INTERVAL == 0:
            loss.item()
    return time.perf_counter() - start


def session(steps: int) -> float:
    """Train in a session: everything it offers is on."""
    from slipway import Session  # noqa: PLC0415 -- each contender imports its own

    model, optimizer = parts()
    with (
        tempfile.TemporaryDirectory() as folder,
        Session(model=model, optimizer=optimizer, folder=folder, log_interval=LOG_INTERVAL) as session,
    ):
        for _ in session.epochs(1):
            start = time.perf_counter()
            for batch in session.batches(batches(steps)):
                optimizer.zero_grad()
                loss = model(batch).square().mean()
                loss.backward()
                optimizer.step()
                session.log(loss=loss)
            seconds = time.perf_counter() - start
    return seconds


def fabric(steps: int) -> float:
    """Train under Lightning Fabric: model and optimiser wrapped, nothing saved."""
    from lightning.fabric import Fabric  # noqa: PLC0415

    fabric = Fabric(accelerator="cpu", devices=1)
    model, optimizer = fabric.setup(*parts())
    start = time.perf_counter()
    for number, batch in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        fabric.backward(loss)
        optimizer.step()
        if number % LOG_INTERVAL == 0:
            fabric.log("loss", loss)
    return time.perf_counter() - start


def accelerate(steps: int) -> float:
    """Train under Accelerate: model and optimiser wrapped, nothing saved."""
    from accelerate import Accelerator  # noqa: PLC0415

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*parts())
    start = time.perf_counter()
    for number, batch in enumerate(batches(steps)):
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
        if number % LOG_INTERVAL == 0:
            accelerator.log({"loss": loss.item()})
    return time.perf_counter() - start


def ignite(steps: int) -> float:
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
    start = time.perf_counter()
    engine.run(batches(steps), max_epochs=1, epoch_length=steps)
    return time.perf_counter() - start


def lightning(steps: int) -> float:
    """Train under Lightning's Trainer, with its own log and nothing saved."""
    import lightning as L  # noqa: PLC0415 -- as its users write

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, _ = parts()

        def training_step(self, batch: Tensor) -> Tensor:
            loss: Tensor = self.model(batch).square().mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3, momentum=0.9)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, log_every_n_steps=LOG_INTERVAL, barebones=False, **quiet
    )
    start = time.perf_counter()
    trainer.fit(Module(), DataLoader(list(batches(steps)), batch_size=None))  # type: ignore[arg-type] # a list is a data set
    return time.perf_counter() - start


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


def main() -> int:
    """Compare, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in ("slipway", "lightning", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    contenders = {"bare": bare, **installed()}
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(args.rounds + 1):
        order = list(contenders) if number % 2 else list(reversed(contenders))
        for name in order:
            seconds = contenders[name](args.steps)
            if number:  # the first round imports and warms up
                found[name].append(seconds / args.steps * 1e6)
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

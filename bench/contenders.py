"""Endless training loops that ``bench/session.py`` compares: each trains the same small model on the same batches.

Each contender imports its own libraries. All of them read the loss at intervals, and record it if they can.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from trainer.data.sets import Splits

Turn = Callable[[], None]
"""Called at the start of each step."""
LOG_INTERVAL = 50
BATCHES = torch.randn(100, 8, 16).unbind()
ENDLESS = 1 << 18
"""A number of steps that no contender reaches."""


class Batches(Dataset[Tensor]):
    """A data set of more batches than any contender fetches."""

    def __init__(self, turn: Turn) -> None:
        """Create a data set that calls ``turn`` for each fetch."""
        self._turn = turn

    def __len__(self) -> int:
        """Return the number of batches."""
        return ENDLESS

    def __getitem__(self, number: int) -> Tensor:
        """Return a batch: float32 [8, 16]."""
        self._turn()
        return BATCHES[number % len(BATCHES)]


def loader(turn: Turn) -> DataLoader[Tensor]:
    """Return the data loader of all contenders except the trainer."""
    return DataLoader(Batches(turn), batch_size=None)


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a one-layer model and its optimizer, whose computation takes almost no time."""
    model = nn.Linear(16, 1, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def bare(turn: Turn, _folder: str) -> None:
    """Train without a library."""
    model, optimizer = parts()
    for number, batch in enumerate(loader(turn)):
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        if number % LOG_INTERVAL == 0:
            loss.item()


def session(turn: Turn, folder: str) -> None:
    """Train in a session with all its features enabled."""
    from slipway import Session  # noqa: PLC0415 -- each contender imports its own

    model, optimizer = parts()
    with Session(model=model, optimizer=optimizer, folder=folder, log_interval=LOG_INTERVAL) as session:
        for _ in session.epochs(1):
            for batch in session.batches(loader(turn)):
                optimizer.zero_grad()
                loss = model(batch).mean()
                loss.backward()
                optimizer.step()
                session.log(loss=loss)


class Images:
    """The batches as a data set of the trainer (trainer.data.sets.Dataset): images of 4 by 4 pixels, of one class."""

    turn: Turn = staticmethod(lambda: None)
    shape, classes, draws, in_memory = (1, 4, 4), ("only",), 0, True
    mean_std = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)

    def __init__(self, samples: int) -> None:
        """Create ``samples`` images."""
        self.labels = torch.zeros(samples, dtype=torch.int64)
        self._batch = torch.zeros(8, 1, 4, 4, dtype=torch.uint8)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def fetch(self, ids: list[int], _draws: object) -> object:
        """Return a batch: uint8 [n, 1, 4, 4]."""
        from trainer.data.base import Fetched  # noqa: PLC0415

        Images.turn()
        return Fetched(self._batch[: len(ids)], [])

    def describe(self, sample: int) -> str:
        """Return the sample's number."""
        return str(sample)


def images(_config: object) -> Splits:
    """Return the trainer's data (``--dataset contenders:images``)."""
    from trainer.data.sets import Splits  # noqa: PLC0415

    return Splits(Images(1 << 20), Images(8))


def image_model(_shape: object, _classes: int) -> nn.Module:
    """Return the model for the trainer (``--arch contenders:image_model``)."""
    return nn.Sequential(nn.Flatten(), parts()[0])


def trainer(turn: Turn, folder: str) -> None:
    """Train with the trainer. It also normalizes images, computes cross entropy, and sets learning rate and seed."""
    from trainer.__main__ import main  # noqa: PLC0415

    Images.turn = staticmethod(turn)
    sys.argv = [
        "trainer",
        *("--dataset", "contenders:images", "--arch", "contenders:image_model", "--batch-size", "8"),
        *("--log-interval", str(LOG_INTERVAL), "--threads", "1", "--device", "cpu", "--no-figures"),
        *("--optimizer", "sgd", "--output-dir", folder),
    ]
    main()


def fabric(turn: Turn, folder: str) -> None:
    """Train with Lightning Fabric: model and optimizer wrapped, nothing saved."""
    from lightning.fabric import Fabric  # noqa: PLC0415
    from lightning.fabric.loggers import CSVLogger  # noqa: PLC0415

    fabric = Fabric(accelerator="cpu", devices=1, loggers=CSVLogger(folder, flush_logs_every_n_steps=1))
    model, optimizer = fabric.setup(*parts())
    for number, batch in enumerate(loader(turn)):
        optimizer.zero_grad()
        loss = model(batch).mean()
        fabric.backward(loss)
        optimizer.step()
        if number % LOG_INTERVAL == 0:
            fabric.log("loss", loss, step=number)


def accelerate(turn: Turn, _folder: str) -> None:
    """Train with Accelerate: model and optimizer wrapped, nothing saved."""
    from accelerate import Accelerator  # noqa: PLC0415

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*parts())
    for number, batch in enumerate(loader(turn)):
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            loss = model(batch).mean()
            accelerator.backward(loss)
            optimizer.step()
        if number % LOG_INTERVAL == 0:
            accelerator.log({"loss": loss.item()})


def ignite(turn: Turn, _folder: str) -> None:
    """Train with ignite, with a running average of the loss."""
    from ignite.engine import Engine, Events  # noqa: PLC0415
    from ignite.metrics import RunningAverage  # noqa: PLC0415

    model, optimizer = parts()

    def step(_engine: object, batch: Tensor) -> float:
        optimizer.zero_grad()
        loss = model(batch).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    engine = Engine(step)
    RunningAverage(output_transform=lambda loss: loss).attach(engine, "loss")
    engine.add_event_handler(
        Events.ITERATION_COMPLETED(every=LOG_INTERVAL), lambda engine: engine.state.metrics["loss"]
    )
    engine.run(loader(turn), max_epochs=1, epoch_length=ENDLESS)


def lightning(turn: Turn, folder: str) -> None:
    """Train with Lightning's Trainer, with its own log and nothing saved."""
    import lightning as L  # noqa: PLC0415 -- as its users write
    from lightning.pytorch.loggers import CSVLogger  # noqa: PLC0415

    class Module(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model, _ = parts()

        def training_step(self, batch: Tensor) -> Tensor:
            loss: Tensor = self.model(batch).mean()
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        log_every_n_steps=LOG_INTERVAL,
        logger=CSVLogger(folder, flush_logs_every_n_steps=1),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), loader(turn))


Contender = Callable[[Turn, str], None]
"""Trains until its process is killed; writes to the folder."""
CONTENDERS: dict[str, tuple[Contender, str]] = {
    "bare": (bare, "torch"),
    "bare, again": (bare, "torch"),
    "session": (session, "slipway"),
    "trainer": (trainer, "trainer"),
    "Fabric": (fabric, "lightning"),
    "ignite": (ignite, "ignite"),
    "Accelerate": (accelerate, "accelerate"),
    "Lightning": (lightning, "lightning"),
}
"""The loop and the library that it needs, by name."""


def installed() -> dict[str, Contender]:
    """Return the contenders whose library is installed."""
    return {name: train for name, (train, library) in CONTENDERS.items() if importlib.util.find_spec(library)}

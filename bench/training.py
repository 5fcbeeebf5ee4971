"""``python bench/training.py [--device cuda] [--tiny] [--rounds N]``: optimiser steps of the trainer and of others.

The others are the training loops of well-known programs, written after them: float32, or with mixed precision where
their flag for that is named. The trainer takes its defaults, which are bf16 and NHWC on hardware that multiplies bf16;
measured are the steps of its learner, without the run around them. Images of ResNets are in memory; those of MNIST come
through the data loader of each, from torchvision's files. On a CPU each has one thread, and its CPU time counts; on a
GPU, the time by the clock. pytorch-ignite and timm are installed into a folder of their own.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import peers
import torch
import torch.distributed as dist
import torch.nn.functional as F
from comparison import Comparison, Turn, compare, show, timed
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torchvision import datasets, transforms

from slipway.environment import read_environment
from slipway.position import Position
from trainer.auto import multiplies_bf16, settle
from trainer.cli import parse
from trainer.data.loader import by_step
from trainer.models import initial_model
from trainer.models.small import MnistCNN
from trainer.parts import build_parts
from trainer.strategies import connect

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))
from mnist_files import write_mnist  # type: ignore[import-not-found]

PEERS = ["pytorch-ignite==0.5.5", "timm==1.0.31"]
CLASSES, LOG_INTERVAL = 10, 10
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""Of torch's environment, for DDP; a free port is found."""
Steps = Iterator[None]
"""Takes an optimiser step each time."""


def endless(batches: DataLoader[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches, epoch after epoch."""
    return itertools.chain.from_iterable(itertools.repeat(batches))


def in_memory(device: str, edge: int, batch: int) -> DataLoader[Any]:
    """Return batches of float images, as transforms would make them; for a GPU they are there already."""
    images, labels = torch.randn(4 * batch, 3, edge, edge, device=device), torch.arange(4 * batch, device=device)
    return DataLoader(TensorDataset(images, labels % CLASSES), batch_size=batch, shuffle=True)


def trainer_model(arch: str, batches: DataLoader[Any]) -> nn.Module:
    """Return the model that the trainer makes of that name: on small images, ResNets have a smaller stem there."""
    _, *shape = next(iter(batches))[0].shape
    return initial_model(parse(["--arch", arch]), shape=tuple(shape), classes=CLASSES)


def torchvision_reference(device: str, batches: DataLoader[Any], arch: str, *, amp: bool) -> Steps:
    """Train as references/classification/train.py does: SGD, with accuracy and loss of each step measured."""
    model = trainer_model(arch, batches).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=amp)
    for batch in endless(batches):
        images, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
        with torch.autocast(device, torch.float16, enabled=amp):
            logits = model(images)
            loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        top = logits.topk(5).indices == labels[:, None]
        top[:, :1].sum().item(), top.sum().item(), loss.item()
        yield


def timm_train(device: str, batches: DataLoader[Any], arch: str) -> Steps:
    """Train as timm's train.py does with --amp --amp-dtype bfloat16 --channels-last."""
    import timm  # type: ignore[import-not-found]
    from timm.optim import create_optimizer_v2  # type: ignore[import-not-found]

    model = timm.create_model(arch, num_classes=CLASSES).to(device, memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="momentum", lr=0.05, weight_decay=2e-5)
    for step, batch in enumerate(endless(batches)):
        images, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            loss.item()
        yield


def ignite_cifar10(device: str, batches: DataLoader[Any], arch: str) -> Steps:
    """Train by ignite's supervised trainer, as its example for CIFAR-10 does without --with_amp."""
    from ignite.engine import create_supervised_trainer  # type: ignore[import-not-found]

    model = trainer_model(arch, batches).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.4, momentum=0.9, weight_decay=1e-4, nesterov=True)
    engine = create_supervised_trainer(model, optimizer, F.cross_entropy, device=device, non_blocking=True)
    for batch in endless(batches):
        engine.run([batch], max_epochs=1)
        yield


def examples_mnist(device: str, place: Path) -> Steps:
    """Train as pytorch/examples' mnist/main.py does, on torchvision's MNIST."""
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    workers: dict[str, Any] = {}
    if device != "cpu":
        workers = {"num_workers": 1, "persistent_workers": True, "pin_memory": True}
    batches = DataLoader(datasets.MNIST(str(place), transform=steps), batch_size=64, shuffle=True, **workers)
    model = MnistCNN((1, 28, 28), CLASSES).to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for step, (images, labels) in enumerate(endless(batches)):
        optimizer.zero_grad()
        loss = F.nll_loss(F.log_softmax(model(images.to(device)), dim=1), labels.to(device))
        loss.backward()
        optimizer.step()
        if step % LOG_INTERVAL == 0:
            loss.item()
        yield


def trainer(device: str, *flags: str, backend: str = "single") -> Steps:
    """Take the steps of the trainer's learner with these flags, on one rank."""
    settings = parse([*flags, "--device", device, "--backend", backend])
    comm, strategy = connect(settings, read_environment(ONE_RANK if backend == "ddp" else {}))
    settings = settle(settings, comm, backend=backend, checkpoint=None)
    parts = build_parts(settings, comm, strategy)
    step = 0
    for epoch in itertools.count():
        for plan, micro_batches in by_step(parts.feed.batches(epoch=epoch, start=0, steps=None)):
            parts.learner.start_step(Position(step), step_samples=plan.step_samples)
            parts.learner.backward(micro_batches, count=plan.total)
            parts.learner.step()
            step += 1
            if step % LOG_INTERVAL == 0:
                parts.learner.loss_sum.item()
            yield


def on_synthetic_images(arch: str, edge: int, batch: int) -> list[str]:
    """Return the flags with which the trainer trains a model on images in memory."""
    shape = ["--synthetic-shape", "3", str(edge), str(edge)]
    samples = ["--synthetic-samples", str(4 * batch), "--synthetic-classes", str(CLASSES), "--batch-size", str(batch)]
    return ["--dataset", "synthetic", *shape, *samples, "--arch", arch, "--optimizer", "sgd"]


def resnet50(device: str, *, tiny: bool) -> dict[str, Steps]:
    """Return who trains ResNet-50; on a GPU by more programs, and by the trainer with each backend."""
    edge, batch = (224, 128) if device == "cuda" and not tiny else (128, 16)
    batches, flags = in_memory(device, edge, batch), on_synthetic_images("resnet50", edge, batch)
    found = {
        "torchvision's reference": torchvision_reference(device, batches, "resnet50", amp=False),
        "trainer": trainer(device, *flags),
        "trainer --amp none": trainer(device, *flags, "--amp", "none"),
        "timm --amp --channels-last": timm_train(device, batches, "resnet50"),
    }
    if device == "cuda" or tiny:
        found["trainer, ddp"] = trainer(device, *flags, backend="ddp")
        if importlib.util.find_spec("horovod"):
            found["trainer, horovod"] = trainer(device, *flags, backend="horovod")
    if device == "cuda":
        found["torchvision's reference --amp"] = torchvision_reference(device, batches, "resnet50", amp=True)
    return found


def resnet18(device: str, *, tiny: bool) -> dict[str, Steps]:
    """Return who trains ResNet-18 on images of the size of CIFAR-10's."""
    batch = 16 if tiny else 64
    return {
        "ignite's cifar10": ignite_cifar10(device, in_memory(device, 32, batch), "resnet18"),
        "trainer": trainer(device, *on_synthetic_images("resnet18", 32, batch)),
        "trainer --amp none": trainer(device, *on_synthetic_images("resnet18", 32, batch), "--amp", "none"),
    }


def mnist(device: str, place: Path) -> dict[str, Steps]:
    """Return who trains the CNN of pytorch/examples on MNIST."""
    flags = ["--dataset", "mnist", "--data-dir", str(place), "--batch-size", "64", "--arch", "mnist-cnn"]
    flags += ["--optimizer", "adadelta", "--lr", "1"]
    return {
        "pytorch/examples' mnist": examples_mnist(device, place),
        "trainer": trainer(device, *flags),
        "trainer --amp none": trainer(device, *flags, "--amp", "none"),
    }


def comparisons(rounds: int = 5, *, device: str = "cpu", tiny: bool = False) -> list[Comparison]:
    """Measure each model."""
    sys.path.insert(1, peers.installed(PEERS))
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = device == "cuda"  # as the others set it

    def taking(steps: Steps, count: int) -> Turn:
        def turn() -> None:
            for _ in range(count):
                next(steps)

        turn()  # what is done once: buffers, algorithms
        return partial(timed, turn, device=device)

    few, many = (2, 20) if tiny else (4, 200)
    with tempfile.TemporaryDirectory() as folder:
        write_mnist(Path(folder), train=600 if tiny else 6000, test=10)
        models = [
            ("ResNet-50", partial(resnet50, device, tiny=tiny), few, 2.6),
            ("ResNet-18 on CIFAR-10", partial(resnet18, device, tiny=tiny), 2 * few, 2.0),
            ("CNN on MNIST, with its loader", partial(mnist, device, Path(folder)), many, 2.4),
        ]
        found = []
        for title, contenders, count, aim in models:
            turns = {name: taking(steps, count) for name, steps in contenders().items()}
            unit = f"seconds of {'CPU' if device == 'cpu' else 'the clock'}, {count} steps"
            aims = {"trainer": aim} if multiplies_bf16(torch.device(device)) else {}
            found.append(compare(title, turns, rounds=rounds, unit=unit, aims=aims))
    if dist.is_initialized():
        dist.destroy_process_group()
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to see that all of it works")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    show(comparisons(arguments.rounds, device=arguments.device, tiny=arguments.tiny))

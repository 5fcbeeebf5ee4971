"""``python bench/training.py [--device cuda] [--tiny] [--rounds N]``: time optimizer steps of the trainer and others.

The others reproduce the training loops of well-known programs, in float32, or in mixed precision if the row names their
flag for it. Each loads data as its users do: from host memory, with its own loader and its own number of workers, at
most one for two CPUs; on a CPU without workers, because their CPU time would not count. Rows "data on the device"
exclude the transfer: batches are drawn by index from tensors on the device. The trainer uses its defaults, which are
bf16 and NHWC on hardware that multiplies bf16; only its learner's steps are measured, not the rest of the run. cuDNN
benchmarks its algorithms (cudnn.benchmark) for the programs that set it; the trainer does not set it, because two runs
could then choose different algorithms. On a CPU each program has one thread, and its CPU time is measured; on a GPU it
has torch's default number of threads, and the wall-clock time is measured. pytorch-ignite and timm are installed into a
separate folder.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import itertools
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import peers
import torch
import torch.distributed as dist
import torch.nn.functional as F
from comparison import Aim, Comparison, Cost, Turn, compare, show, timed
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import datasets, transforms
from torchvision.transforms import functional as TF

from slipway.base.environment import read_environment
from slipway.checkpoint.header import Position
from trainer.build import build_parts
from trainer.config.cli import parse
from trainer.data.loader import by_step
from trainer.engine.auto_precision import supports_bf16
from trainer.model import initial_model
from trainer.model.small import MnistCNN
from trainer.parallel.strategy import connect

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))
from mnist_files import write_mnist  # type: ignore[import-not-found]

CLASSES, LOG_INTERVAL = 10, 10
SAMPLES, ENDLESS = 8, 1 << 40
"""Batches of a set in memory, and samples in an epoch, which no contender finishes."""
PREFETCHED, LOADERS = 2, 4
"""Batches that a worker prefetches, and the maximum number of open loaders in a comparison."""
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
REFERENCE, TIMM = "torchvision's reference", "timm --amp --channels-last"
REFERENCE_WORKERS, TIMM_WORKERS, IGNITE_WORKERS = 16, 4, 12
"""Defaults of these programs."""
AIMS: dict[str, dict[str, dict[str, Aim]]] = {
    "cpu": {
        "ResNet-50": {"trainer": 2.6},
        "ResNet-18 on CIFAR-10": {"trainer": 2.0},
        "CNN on MNIST, with its loader": {"trainer": 2.4},
    },
    "cuda": {
        "ResNet-50": {"trainer": {f"{REFERENCE} --amp": 1.8, TIMM: 1.0}},
        "ResNet-18 on CIFAR-10": {},
        "CNN on MNIST, with its loader": {"trainer": 20.0},
    },
}
"""Targets by device: the factor by which the trainer should cost less than the first or the named contenders."""
ONE_RANK = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""torch's environment variables for DDP with one rank; port 0 means a free port."""
Steps = Iterator[None]
"""Iterator that takes an optimizer step on each ``next``."""


class Contender(NamedTuple):
    """A training loop to compare."""

    start: Callable[[], Steps]
    workers: int = 0
    """Number of its loader's worker processes, each of which prefetches."""


Contenders = dict[str, Contender]


class Images(Dataset[Any]):
    """Images in host memory, transformed on access."""

    def __init__(self, edge: int, count: int, *, floats: bool) -> None:
        """Create ``count`` uint8 images [3, edge, edge]; with ``floats``, items are normalized float32."""
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (count, 3, edge, edge), dtype=torch.uint8, generator=generator)
        self._floats = floats

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return an image, as a float tensor or a uint8 array, and its label."""
        image, label = self.images[index], index % CLASSES
        if not self._floats:
            return image.numpy(), label
        return TF.normalize(image.float().div_(255), MEAN, DEVIATION), label


class Source(NamedTuple):
    """The images of a comparison."""

    device: str
    edge: int
    batch: int
    on_device: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Image shape: channels, height, width."""
        return (3, self.edge, self.edge)

    def workers(self, most: int) -> int:
        """Return a loader's number of workers: limited to one for two CPUs, and by the shared memory."""
        if self.device == "cpu" or self.on_device:
            return 0
        size = 4 * self.batch * math.prod(self.shape)
        room = shutil.disk_usage("/dev/shm").free // (LOADERS * (PREFETCHED + 1) * size)  # noqa: S108 -- torch's place
        return max(1, min(most, len(os.sched_getaffinity(0)) // 2, room))

    def batches(self, *, workers: int) -> Iterator[Any]:
        """Yield floats [batch, 3, edge, edge] and labels, from a DataLoader or from tensors on the device."""
        data = Images(self.edge, SAMPLES * self.batch, floats=True)
        if not self.on_device:
            return iter(self.loader(data, workers=workers))
        images = torch.stack([data[index][0] for index in range(len(data))]).to(self.device)
        return drawn(images, torch.arange(len(data), device=self.device) % CLASSES, self.batch)

    def loader(self, data: Dataset[Any], *, workers: int, collate: Any = None) -> DataLoader[Any]:
        """Return an endless loader, so that no step includes the start of its workers."""
        workers = self.workers(workers)
        endless = RandomSampler(data, replacement=True, num_samples=ENDLESS)  # type: ignore[arg-type]
        pin = self.device != "cpu"
        return DataLoader(
            data, self.batch, sampler=endless, num_workers=workers, pin_memory=pin, collate_fn=collate, drop_last=True
        )


def drawn(images: Tensor, labels: Tensor, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches by index, in a new random order each epoch, on the tensors' device."""
    while True:
        order = torch.randperm(len(images), device=images.device)
        for indices in order.split(batch):
            if len(indices) == batch:
                yield images[indices], labels[indices]


def trainer_model(arch: str, shape: tuple[int, int, int]) -> nn.Module:
    """Return the trainer's model ``arch``; its ResNets have a smaller stem for small images."""
    return initial_model(parse(["--arch", arch]), shape=shape, classes=CLASSES)


def torchvision_reference(source: Source, arch: str, *, amp: bool) -> Steps:
    """Train as references/classification/train.py does: SGD, with accuracy and loss computed in each step."""
    device = source.device
    model = trainer_model(arch, source.shape).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device, enabled=amp)
    for batch in source.batches(workers=REFERENCE_WORKERS):
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


def timm_train(source: Source, arch: str) -> Steps:
    """Train as timm's train.py does with --amp --amp-dtype bfloat16 --channels-last."""
    import timm  # type: ignore[import-not-found]
    from timm.data.loader import PrefetchLoader, fast_collate  # type: ignore[import-not-found]
    from timm.optim import create_optimizer_v2  # type: ignore[import-not-found]

    device = source.device
    model = timm.create_model(arch, num_classes=CLASSES).to(device, memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="momentum", lr=0.05, weight_decay=2e-5)
    batches: Iterable[Any]
    if source.on_device:
        batches = source.batches(workers=0)
    else:
        data = Images(source.edge, SAMPLES * source.batch, floats=False)
        loader = source.loader(data, workers=TIMM_WORKERS, collate=fast_collate)
        batches = PrefetchLoader(loader, device=torch.device(device))
    for step, (images, labels) in enumerate(batches):
        with torch.autocast(device, torch.bfloat16):
            loss = F.cross_entropy(model(images.contiguous(memory_format=torch.channels_last)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            loss.item()
        yield


def ignite_cifar10(source: Source, arch: str) -> Steps:
    """Train with ignite's supervised trainer, as its CIFAR-10 example does without --with_amp."""
    from ignite.engine import create_supervised_trainer  # type: ignore[import-not-found]

    device = source.device
    model = trainer_model(arch, source.shape).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.4, momentum=0.9, weight_decay=1e-4, nesterov=True)
    engine = create_supervised_trainer(model, optimizer, F.cross_entropy, device=device, non_blocking=True)
    for batch in source.batches(workers=IGNITE_WORKERS):
        engine.run([batch], max_epochs=1)
        yield


def examples_mnist(device: str, place: Path, *, on_device: bool = False) -> Steps:
    """Train as pytorch/examples' mnist/main.py does, on torchvision's MNIST."""
    steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    data = datasets.MNIST(str(place), transform=steps)
    if on_device:
        images, labels = (torch.stack([torch.as_tensor(pair[part]) for pair in data]).to(device) for part in (0, 1))
        batches = drawn(images, labels, 64)
    else:
        workers: dict[str, Any] = {}
        if device != "cpu":
            workers = {"num_workers": 1, "persistent_workers": True, "pin_memory": True}
        loader = DataLoader(data, batch_size=64, shuffle=True, **workers)
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
    model = MnistCNN((1, 28, 28), CLASSES).to(device)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    for step, (images, labels) in enumerate(batches):
        optimizer.zero_grad()
        loss = F.nll_loss(F.log_softmax(model(images.to(device)), dim=1), labels.to(device))
        loss.backward()
        optimizer.step()
        if step % LOG_INTERVAL == 0:
            loss.item()
        yield


def trainer(device: str, *flags: str, backend: str = "single") -> Steps:
    """Take steps of the trainer's learner with ``flags``, on one rank."""
    settings = parse([*flags, "--device", device, "--backend", backend])
    comm, strategy = connect(settings, read_environment(ONE_RANK if backend == "ddp" else {}))
    parts = build_parts(settings, comm, strategy)
    step = 0
    for epoch in itertools.count():
        for plan, micro_batches in by_step(parts.training_batches.of_epoch(epoch=epoch, start=0, steps=None)):
            parts.learner.start_step(Position(step), step_samples=plan.step_samples)
            parts.learner.backward(micro_batches, count=plan.total)
            parts.learner.step()
            step += 1
            if step % LOG_INTERVAL == 0:
                parts.learner.loss_sum.item()
            yield


def on_synthetic_images(arch: str, source: Source) -> list[str]:
    """Return the trainer's flags for a model on images in memory."""
    shape = ["--synthetic-shape", *map(str, source.shape)]
    samples = ["--synthetic-samples", str(SAMPLES * source.batch), "--synthetic-classes", str(CLASSES)]
    batch = ["--batch-size", str(source.batch)]
    return ["--dataset", "synthetic", *shape, *samples, *batch, "--arch", arch, "--optimizer", "sgd"]


def resnet50(device: str, *, tiny: bool) -> Contenders:
    """Return the contenders for ResNet-50; on a GPU more programs, and the trainer with each backend."""
    gpu = device == "cuda"
    source = Source(device, *((224, 128) if gpu else (64, 4) if tiny else (128, 16)))
    there = source._replace(on_device=True)
    flags, many = on_synthetic_images("resnet50", source), source.workers(REFERENCE_WORKERS)
    found: Contenders = {
        REFERENCE: tuned(partial(torchvision_reference, source, "resnet50", amp=False), many),
        "trainer": Contender(partial(trainer, device, *flags)),
        "trainer --amp none": Contender(partial(trainer, device, *flags, "--amp", "none")),
        TIMM: tuned(partial(timm_train, source, "resnet50"), source.workers(TIMM_WORKERS)),
    }
    if gpu:
        amp = {f"{REFERENCE} --amp": tuned(partial(torchvision_reference, source, "resnet50", amp=True), many)}
        found = amp | found  # the peer
    if gpu or tiny:
        found["trainer, ddp"] = Contender(partial(trainer, device, *flags, backend="ddp"))
        if importlib.util.find_spec("horovod"):
            found["trainer, horovod"] = Contender(partial(trainer, device, *flags, backend="horovod"))
        found[f"{TIMM}, data on the device"] = tuned(partial(timm_train, there, "resnet50"), 0)
        found[f"{REFERENCE} --amp, data on the device"] = tuned(
            partial(torchvision_reference, there, "resnet50", amp=gpu), 0
        )
    return found


def resnet18(device: str, *, tiny: bool) -> Contenders:
    """Return the contenders for ResNet-18 on images of CIFAR-10's size."""
    source = Source(device, 32, 4 if tiny else 64)
    flags = on_synthetic_images("resnet18", source)
    found: Contenders = {
        "ignite's cifar10": Contender(partial(ignite_cifar10, source, "resnet18"), source.workers(IGNITE_WORKERS)),
        "trainer": Contender(partial(trainer, device, *flags)),
        "trainer --amp none": Contender(partial(trainer, device, *flags, "--amp", "none")),
    }
    if device == "cuda" or tiny:
        there = source._replace(on_device=True)
        found["ignite's cifar10, data on the device"] = Contender(partial(ignite_cifar10, there, "resnet18"))
    return found


def mnist(device: str, place: Path, *, tiny: bool) -> Contenders:
    """Return the contenders for the CNN of pytorch/examples on MNIST."""
    flags = ["--dataset", "mnist", "--data-dir", str(place), "--batch-size", "64", "--arch", "mnist-cnn"]
    flags += ["--optimizer", "adadelta", "--lr", "1"]
    found: Contenders = {
        "pytorch/examples' mnist": Contender(partial(examples_mnist, device, place), int(device != "cpu")),
        "trainer": Contender(partial(trainer, device, *flags)),
        "trainer --amp none": Contender(partial(trainer, device, *flags, "--amp", "none")),
    }
    if device == "cuda" or tiny:
        there = partial(examples_mnist, device, place, on_device=True)
        found["pytorch/examples' mnist, data on the device"] = Contender(there)
    return found


def tuned(steps: Callable[[], Steps], workers: int) -> Contender:
    """Return a contender whose program sets cudnn.benchmark."""

    def with_benchmark() -> Steps:
        own = steps()
        while True:
            torch.backends.cudnn.benchmark = True
            try:
                next(own)
            finally:
                torch.backends.cudnn.benchmark = False
            yield

    return Contender(with_benchmark, workers)


def comparisons(rounds: int = 5, *, device: str = "cpu", tiny: bool = False) -> Iterator[Comparison]:
    """Yield a comparison for each model."""
    sys.path.insert(1, peers.installed(peers.TRAINING))
    if device == "cpu":
        torch.set_num_threads(1)

    def taking(contender: Contender, count: int) -> Turn:
        steps = contender.start()

        def take(count: int) -> None:
            for _ in range(count):
                next(steps)

        def turn() -> Cost:
            # Skip the batches that workers have prefetched during the turns of others.
            take(PREFETCHED * contender.workers)
            return timed(partial(take, count), device=device)

        take(count)  # one-time work: buffers, algorithms
        return turn

    few, many = (1, 5) if tiny else (4, 200)
    if device == "cuda":
        few = 8
    with tempfile.TemporaryDirectory() as folder:
        write_mnist(Path(folder), train=600 if tiny else 6000, test=10)
        models = [
            ("CNN on MNIST, with its loader", partial(mnist, device, Path(folder), tiny=tiny), many),
            ("ResNet-18 on CIFAR-10", partial(resnet18, device, tiny=tiny), 2 * few),
            ("ResNet-50", partial(resnet50, device, tiny=tiny), few),
        ]
        for title, contenders, count in models:
            turns = {name: taking(contender, count) for name, contender in contenders().items()}
            unit = f"seconds of {'CPU' if device == 'cpu' else 'the clock'}, {count} steps"
            has_aims = not tiny and (device == "cuda" or supports_bf16(torch.device(device)))
            aims = AIMS[device][title] if has_aims else {}
            yield compare(title, turns, rounds=rounds, unit=unit, aims=aims)
            turns.clear()  # frees models and loader workers
            gc.collect()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to test that the program works")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    show(comparisons(arguments.rounds, device=arguments.device, tiny=arguments.tiny))

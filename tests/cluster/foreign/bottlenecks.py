"""Data sets and models with a known bottleneck, for tests of the advice of ``trainer report``."""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from trainer.data.base import InMemoryDataset, Splits, in_memory_splits
from trainer.model.small import MnistCNN

SAMPLES = 8192


@dataclass(frozen=True)
class Slow:
    """A data set whose samples take ``seconds`` each to load, as if from files unless ``in_memory``."""

    data: InMemoryDataset
    seconds: float
    in_memory: bool = False

    def __getattr__(self, name):
        if name == "data":  # not set yet: a worker process is creating this object
            raise AttributeError(name)
        return getattr(self.data, name)

    def __len__(self):
        return len(self.data)

    def fetch(self, ids, draws):
        time.sleep(self.seconds * len(ids))
        return self.data.fetch(ids, draws)


def images(config):
    """Return noise in two classes, in the size of MNIST's digits."""
    labels = torch.arange(SAMPLES + 64) % 2
    pictures = torch.randint(0, 128, (SAMPLES + 64, 1, 28, 28), dtype=torch.uint8)
    pictures[labels == 0] += 100
    train, validation = slice(0, SAMPLES), slice(SAMPLES, None)
    return in_memory_splits(
        (pictures[train], labels[train]),
        (pictures[validation], labels[validation]),
        classes=("light", "dark"),
        padding=config.crop_padding,
        flip=config.flip,
    )


def _slow(config, seconds, *, in_memory=False):
    found = images(config)
    return Splits(Slow(found.train, seconds, in_memory), found.validation)


def slow(config):
    return _slow(config, 0.004)


def slower(config):
    return _slow(config, 0.008)


def slow_in_memory(config):
    return _slow(config, 0.001, in_memory=True)


def _computing(model):
    """Return ``model`` with steps that take 150 ms more, by sleeping, because two CPUs may share one core."""
    model.register_forward_pre_hook(lambda *_: time.sleep(0.15))
    return model


def few_weights(shape, classes):
    layers = [nn.Conv2d(shape[0], 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _computing(nn.Sequential(*layers, nn.Linear(32, classes)))


def many_weights(shape, classes):
    """Return MNIST's model: 4.8 MB of gradients."""
    return _computing(MnistCNN(shape, classes))


def waits_for_others(shape, classes):
    """Return a model whose backward pass takes 100 ms more with several ranks."""
    model = few_weights(shape, classes)

    def wait(_):
        if dist.is_initialized() and dist.get_world_size() > 1:
            time.sleep(0.1)

    next(model.parameters()).register_post_accumulate_grad_hook(wait)
    return model

"""Data sets by name: each function returns the training and validation split of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from slipway.dist.collectives import run_on_root
from slipway.dist.communicator import Communicator
from trainer.config.errors import choose
from trainer.config.plugin import SEPARATOR
from trainer.config.settings import DataConfig
from trainer.data.base import Dataset, InMemoryDataset, Splits
from trainer.data.sets.digits import digits
from trainer.data.sets.imagefolder import imagefolder
from trainer.data.sets.synthetic import synthetic
from trainer.data.sets.torchvision_sets import cifar10, mnist
from trainer.data.sets.user_set import open_plugin_dataset

DATASETS: dict[str, Callable[[DataConfig], Splits]] = {
    "digits": digits,
    "mnist": mnist,
    "cifar10": cifar10,
    "imagefolder": imagefolder,
    "synthetic": synthetic,
}

__all__ = ["DATASETS", "Dataset", "InMemoryDataset", "Splits", "open_data", "open_on_ranks"]


def open_data(config: DataConfig) -> Splits:
    """Return both splits of the configured data set.

    Raises:
        ConfigError: if the data set is missing or unusable. The message has the remedy.
    """
    if SEPARATOR in config.dataset:
        return open_plugin_dataset(config)
    return choose(DATASETS, config.dataset, what="dataset")(config)


def open_on_ranks(config: DataConfig, comm: Communicator) -> Splits:
    """Return ``open_data(config)`` on each rank; with ``config.download``, only rank 0 downloads the data.

    Raises:
        ConfigError: as in ``open_data``.
    """
    if config.download:
        run_on_root(comm, lambda: open_data(config))
    return open_data(replace(config, download=False))

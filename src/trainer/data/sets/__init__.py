"""Data sets by name: each function returns the training and the validation part of one."""

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

__all__ = ["DATASETS", "Dataset", "InMemoryDataset", "Splits", "fetch_data", "open_data", "open_on_ranks"]


def open_data(config: DataConfig) -> Splits:
    """Return both parts of the configured data set.

    Raises:
        ConfigError: if it is not there or not usable, saying what to do.
    """
    if SEPARATOR in config.dataset:
        return open_plugin_dataset(config)
    return choose(DATASETS, config.dataset, what="dataset")(config)


def open_on_ranks(config: DataConfig, comm: Communicator) -> Splits:
    """Return ``open_data(config)`` on every rank; one rank downloads what is to be downloaded, and the others find it.

    Raises:
        ConfigError: as ``open_data`` does.
    """
    if config.download:
        run_on_root(comm, lambda: fetch_data(config))
    return open_data(replace(config, download=False))


def fetch_data(config: DataConfig) -> None:
    """Download what ``open_data`` would, and check that it opens."""
    open_data(config)

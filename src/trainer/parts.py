"""What a run is made of on each rank: data, model, optimiser."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from slipway.communicator import Communicator
from slipway.communicator.collectives import run_on_root
from trainer.config import Settings
from trainer.data import Dataset, fetch_data, open_data
from trainer.data.feed import Feed
from trainer.data.loader import Loader
from trainer.device import stage_devices
from trainer.learner import Learner
from trainer.strategies import Strategy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of a run, freshly built, before it resumes."""

    train_set: Dataset
    validation_set: Dataset
    feed: Feed
    validation_loader: Loader
    learner: Learner


def build_parts(settings: Settings, comm: Communicator, strategy: Strategy) -> Parts:
    """Build them as ``settings`` say; all ranks must call this.

    Raises:
        ConfigError: if data or model cannot be had.
    """
    if settings.data.download:  # by one rank; the others then find it
        run_on_root(comm, lambda: fetch_data(settings.data))
    train_set, validation_set = open_data(replace(settings.data, download=False))
    pin_memory, workers = comm.device.type == "cuda", settings.data.workers
    learner = Learner(
        settings,
        comm,
        strategy,
        shape=train_set.shape,
        classes=len(train_set.classes),
        mean_std=train_set.mean_std,
        samples_per_epoch=len(train_set),
        devices=stage_devices(settings, comm.device),
    )
    return Parts(
        train_set=train_set,
        validation_set=validation_set,
        feed=Feed(train_set, settings, comm.world, pin_memory=pin_memory, warn=log.warning),
        validation_loader=Loader(validation_set, workers=workers, pin_memory=pin_memory, warn=log.warning),
        learner=learner,
    )

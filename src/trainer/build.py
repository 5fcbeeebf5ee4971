"""Construction of a run's parts on each rank: data, model, optimizer."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from slipway.base import startup_time
from slipway.checkpoint.format import Checkpoint
from slipway.dist.communicator import Communicator
from trainer.config.settings import Settings
from trainer.data.loader import Loader
from trainer.data.sets import Dataset, open_on_ranks
from trainer.data.training_batches import TrainingBatches, micro_batch_size
from trainer.engine.auto_precision import settle_decoder, settle_precision
from trainer.engine.learner import Learner
from trainer.engine.memory import memory_of, report
from trainer.model import Shape, initial_model
from trainer.model.normalise import memory_layout, normalisation
from trainer.parallel.device import AUTO, cuts_of, stage_devices
from trainer.parallel.stages.balance import Choice, choose
from trainer.parallel.strategy import Strategy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Parts:
    """The parts of a run, before a checkpoint is restored."""

    settings: Settings
    """With a value for each auto."""
    train_set: Dataset
    validation_set: Dataset
    loader: Loader
    training_batches: TrainingBatches
    validation_loader: Loader
    learner: Learner
    choice: Choice
    """Split points of the model."""

    def close(self) -> None:
        """Stop the data workers after a run that ended normally."""
        self.loader.close()
        self.validation_loader.close()


def build_parts(
    settings: Settings, comm: Communicator, strategy: Strategy, *, checkpoint: Checkpoint | None = None
) -> Parts:
    """Build the parts that ``settings`` describe; all ranks must call this.

    ``checkpoint``: on rank 0, the checkpoint to resume from, which has the values of ``auto``; it is not restored.

    Raises:
        ConfigError: if the data or the model is unavailable, if --memory finds that the model does not fit its devices,
            or if the checkpoint is damaged.
    """
    settings = settle_decoder(settings, comm, checkpoint=checkpoint)
    train_set, validation_set = open_on_ranks(settings.data, comm)
    loader, validation_loader = (
        Loader(
            dataset,
            workers=settings.data.workers,
            device=comm.device,
            warn=log.warning,
            memory_fraction=settings.data.device_memory_fraction,
        )
        for dataset in (train_set, validation_set)
    )
    startup_time.mark(startup_time.DATA)

    shape, classes = train_set.shape, len(train_set.classes)
    model = initial_model(settings, shape=shape, classes=classes)
    settings = settle_precision(settings, comm, model, shape=shape, backend=strategy.name, checkpoint=checkpoint)
    model.to(memory_format=memory_layout(settings.model))  # type: ignore[call-overload]
    devices = stage_devices(settings, comm.device)
    choice = Choice(cuts_of(settings.model.split), [])
    if settings.model.split == AUTO:
        choice = choose(model, _micro_batch(settings, shape, ranks=comm.world.size), devices, settings, comm)
    if settings.launch.memory:
        stages = memory_of(model, settings, cuts=choice.cuts, shape=shape, ranks=comm.world.size)
        resident = loader.resident_bytes + validation_loader.resident_bytes
        report(stages, devices, local_ranks=comm.world.local_size, resident={comm.device: resident})
    learner = Learner(
        settings,
        comm,
        strategy,
        model,
        shape=shape,
        classes=classes,
        normalise=normalisation(settings, train_set.mean_std, comm.device),
        samples_per_epoch=len(train_set),
        cuts=choice.cuts,
        devices=devices,
    )
    startup_time.mark(startup_time.MODEL)
    return Parts(
        settings=settings,
        train_set=train_set,
        validation_set=validation_set,
        loader=loader,
        training_batches=TrainingBatches(loader, settings.train, comm.world),
        validation_loader=validation_loader,
        learner=learner,
        choice=choice,
    )


def _micro_batch(settings: Settings, shape: Shape, *, ranks: int) -> Tensor:
    """Return model input of the largest micro-batch's size: zeros [n, c, h, w]."""
    samples = max(2, micro_batch_size(settings.train, ranks))  # batch norm needs two
    images = torch.zeros(samples, *shape, dtype=getattr(torch, settings.train.dtype))
    return images.to(memory_format=memory_layout(settings.model))

"""Builds a learner without a run."""

from collections.abc import Sequence

import torch
from torch import Tensor

from slipway.dist.communicator import Communicator
from trainer.config.settings import Settings
from trainer.engine.auto_precision import PLAIN, settled
from trainer.engine.learner import Learner
from trainer.model import Shape, initial_model
from trainer.model.normalise import normalisation
from trainer.parallel.single import SingleStrategy


def new_learner(
    config: Settings,
    comm: Communicator,
    *,
    shape: Shape,
    classes: int,
    mean_std: tuple[Tensor, Tensor] = (torch.tensor([0.5], dtype=torch.float64), torch.tensor([0.25])),
    samples_per_epoch: int,
    cuts: Sequence[str] = (),
) -> Learner:
    """Return a learner for one rank; with ``cuts``, all its stages are on the rank's device."""
    config = settled(config, PLAIN)
    return Learner(
        config,
        comm,
        SingleStrategy(config),
        initial_model(config, shape=shape, classes=classes),
        shape=shape,
        classes=classes,
        normalise=normalisation(config, mean_std, comm.device),
        samples_per_epoch=samples_per_epoch,
        cuts=cuts,
        devices=[comm.device] * (len(cuts) + 1),
    )

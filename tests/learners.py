"""A learner without a run."""

from collections.abc import Sequence

import torch
from torch import Tensor

from slipway.communicator import Communicator
from trainer.auto import PLAIN, settled
from trainer.config import Settings
from trainer.learner import Learner
from trainer.models import Shape, initial_model
from trainer.normalise import normalisation
from trainer.strategies.single import SingleStrategy


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
    """Return one of a single rank, in stages on its device if there are ``cuts``."""
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

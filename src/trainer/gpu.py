"""Whether this torch can use the GPUs that are here: checked before torch itself fails, or silently sees none."""

from __future__ import annotations

import torch

from slipway.gpu import find_gpus, mismatch
from trainer.errors import ConfigError


def check_gpus() -> None:
    """Compare the driver and the GPUs of this machine with what torch was built for.

    Raises:
        ConfigError: if they do not match, naming the variant of the image that does.
    """
    cuda = torch.version.cuda
    if cuda is None:  # built for CPUs, or for AMD's GPUs
        return
    gpus = find_gpus()
    if gpus and gpus.capabilities and (why := mismatch(gpus, cuda, torch.cuda.get_arch_list())):
        raise ConfigError(f"{why}.")

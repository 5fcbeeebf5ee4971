"""Whether this torch can use the GPUs that are here: before torch itself fails, or sees none and says nothing."""

from __future__ import annotations

import torch

from slipway.gpu import describe, find_gpus, mismatch
from trainer.errors import ConfigError


def check_gpus() -> None:
    """Compare the driver and the GPUs of this machine with what torch was built for.

    Raises:
        ConfigError: if they do not match, naming the variant of the image that does, or if torch fails to open them.
    """
    cuda = torch.version.cuda
    if cuda is None:  # built for CPUs, or for AMD's GPUs
        return
    gpus = find_gpus()
    if gpus is None:
        return
    if gpus.fault:
        raise ConfigError(
            f"the NVIDIA driver of this machine does not start: {gpus.fault}. See what nvidia-smi says; "
            "--device cpu trains without GPUs."
        )
    if not gpus.capabilities:
        return
    if why := mismatch(gpus, cuda, []):  # before torch is asked, which warns of a driver in four lines
        raise ConfigError(f"{why}.")
    try:
        torch.cuda.init()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ConfigError(
            f"this machine has {describe(gpus)}, and torch cannot open them: {reason}. See what nvidia-smi says; "
            "--device cpu trains without them."
        ) from error
    if why := mismatch(gpus, cuda, torch.cuda.get_arch_list()):
        raise ConfigError(f"{why}.")

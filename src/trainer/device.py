"""Which device a rank computes on, and whether this torch can use the GPUs that are here."""

from __future__ import annotations

import torch

from slipway.environment import Launcher
from slipway.gpu import describe, find_gpus, mismatch
from trainer.errors import ConfigError


def check_gpus() -> None:
    """Compare the driver and the GPUs with what torch was built for, before torch fails or sees none and says nothing.

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


def pick_device(requested: str, local_rank: int, launcher: Launcher) -> torch.device:
    """Return this rank's device.

    A launcher that binds ranks to GPUs leaves each just one, numbered 0; otherwise the local rank is the number.

    Raises:
        ConfigError: if GPUs are asked for and there are too few, or torch cannot use those that are there.
    """
    if requested != "cpu":
        check_gpus()
    count = torch.cuda.device_count() if requested != "cpu" else 0
    if count == 0:
        if requested == "cuda":
            raise ConfigError("--device cuda, but torch sees no GPU here: is the driver passed in (apptainer --nv)?")
        return torch.device("cpu")
    bound = count == 1 and launcher.binds_gpus
    if not bound and local_rank >= count:
        raise ConfigError(f"local rank {local_rank} has no GPU, torch sees {count}: start at most one rank per GPU.")
    device = torch.device("cuda", 0 if count == 1 else local_rank)
    torch.cuda.set_device(device)
    return device

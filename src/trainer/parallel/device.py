"""Devices of a rank and of its stages, and the check that torch can use this node's GPUs."""

from __future__ import annotations

import time

import torch

from slipway.base import startup_time
from slipway.base.environment import Launcher
from slipway.base.gpu import find_gpus, why_unusable
from trainer.config.errors import ConfigError
from trainer.config.settings import Settings

CPU = torch.device("cpu")
AUTO = "auto"
"""Value of --split with which the trainer chooses the cuts."""


def now(device: torch.device) -> float:
    """Return the host's clock in seconds, after ``device`` has finished all launched work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def check_gpus() -> None:
    """Check driver and GPUs against torch's build, because torch may fail or silently find no GPU.

    Raises:
        ConfigError: if they do not match (the message has the image variant that does), or if torch cannot open the
            GPUs.
    """
    gpus = find_gpus() if torch.version.cuda else None  # otherwise torch is built for CPUs or AMD GPUs
    slug, why = why_unusable(torch, gpus) if gpus else ("", "")
    if why:
        raise ConfigError(slug, f"{why}; set --device cpu to train without GPUs.")


def pick_device(settings: Settings, local_rank: int, launcher: Launcher) -> torch.device:
    """Return this rank's device; if the model is split, the device of its first stage.

    If the launcher binds GPUs to ranks, each rank sees only its own, numbered from 0. Otherwise, with k devices per
    rank, local rank r takes the devices k r to k r + k - 1.

    Raises:
        ConfigError: if the settings require GPUs and there are too few, or torch cannot use them.
    """
    device = _device_of(settings, local_rank, launcher, gpus=_count_gpus(settings.launch.device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    startup_time.mark(startup_time.DEVICE)
    return device


def _count_gpus(requested: str) -> int:
    """Return the number of GPUs that torch may use with --device ``requested``.

    Raises:
        ConfigError: if torch cannot use this node's GPUs.
    """
    if requested == "cpu":
        return 0
    check_gpus()
    return torch.cuda.device_count()


def _device_of(settings: Settings, local_rank: int, launcher: Launcher, *, gpus: int) -> torch.device:
    """Return the device of ``pick_device`` on a node with ``gpus`` GPUs, without opening one."""
    launch, each = settings.launch, devices_of_rank(settings)
    if launch.stage_devices:
        return _named_devices(settings, launch.stage_devices, gpus=gpus)[0]
    if gpus:
        return torch.device("cuda", _first_gpu(gpus, each, local_rank, bound=launcher.binds_gpus))
    if launch.device == "cuda":
        raise ConfigError(
            "no-gpu", "--device cuda, but torch finds no GPU here: does the container get them (apptainer run --nv)?"
        )
    return CPU


def ranks_for_gpus(settings: Settings) -> int:
    """Return the number of ranks that this machine's GPUs suffice for: ``--nproc-per-node auto``.

    Raises:
        ConfigError: if the GPUs do not suffice for one rank, or torch cannot use them.
    """
    count, each = _count_gpus(settings.launch.device), devices_of_rank(settings)
    if count < each:
        raise ConfigError(
            "no-gpu",
            f"--nproc-per-node auto starts one rank per {'GPU' if each == 1 else f'{each} GPUs'}, but torch finds "
            f"{count} usable GPU(s): set the number of ranks, as in --nproc-per-node 2.",
        )
    return count // each


def require_gpus(settings: Settings, ranks: int) -> None:
    """Check that each of ``ranks`` ranks of ``--nproc-per-node`` gets its device.

    Raises:
        ConfigError: the error of ``pick_device``, for the first rank without a device.
    """
    count = _count_gpus(settings.launch.device)
    for local_rank in range(ranks):
        _device_of(settings, local_rank, Launcher.SPAWN, gpus=count)


def _first_gpu(count: int, each: int, local_rank: int, *, bound: bool) -> int:
    """Return the index of a rank's first GPU; the rank takes ``each`` of the ``count`` GPUs that torch finds."""
    first = 0 if bound and count == each else local_rank * each
    if first + each > count:
        takes = "has no GPU" if each == 1 else f"takes GPUs {first} to {first + each - 1}"
        raise ConfigError(
            "too-few-gpus",
            f"local rank {local_rank} {takes}, but torch finds {count}: start at most one rank per "
            f"{'GPU' if each == 1 else f'{each} GPUs'}.",
        )
    return first


def stages_of(settings: Settings) -> int:
    """Return the number of stages of the model.

    Raises:
        ConfigError: if no setting determines it.
    """
    launch, split = settings.launch, settings.model.split
    if split != AUTO:
        return 1 + len(cuts_of(split))
    if launch.stage_devices:
        return len(launch.stage_devices.split(","))
    if launch.devices_per_rank:
        return launch.devices_per_rank
    raise ConfigError(
        "conflicting-settings", "--split auto needs the number of stages: set --devices-per-rank or --stage-devices."
    )


def cuts_of(split: str | None) -> list[str]:
    """Return the submodules before which to cut the model, as --split lists them; [] for auto or no split."""
    return [name.strip() for name in split.split(",")] if split and split != AUTO else []


def devices_of_rank(settings: Settings) -> int:
    """Return the number of devices per rank: the setting, or else one per stage."""
    return settings.launch.devices_per_rank or stages_of(settings)


def stage_devices(settings: Settings, first: torch.device) -> list[torch.device]:
    """Return the device of each stage, for a rank whose first device is ``first``.

    Raises:
        ConfigError: if --stage-devices lists a device that does not exist, does not list one per stage, or mixes CPU
            and GPU under mixed precision.
    """
    if named := settings.launch.stage_devices:
        return _named_devices(settings, named, gpus=torch.cuda.device_count())
    stages, each = stages_of(settings), devices_of_rank(settings)
    if first.type != "cuda":
        return [first] * stages
    return [torch.device("cuda", (first.index or 0) + stage * each // stages) for stage in range(stages)]


def _named_devices(settings: Settings, named: str, *, gpus: int) -> list[torch.device]:
    names, stages, amp = named.split(","), stages_of(settings), settings.train.amp
    if len(names) != stages:
        raise ConfigError(
            "bad-stage-devices",
            f"--stage-devices {named} lists {len(names)} device(s), but the model has {stages} stage(s).",
        )
    found = []
    for name in names:
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ConfigError(
                "bad-stage-devices", f"--stage-devices {named}: {name!r} is not a device; write cpu or cuda:0."
            ) from error
        if device.type not in {"cpu", "cuda"} or (device.type == "cuda" and device.index is None):
            raise ConfigError(
                "bad-stage-devices",
                f"--stage-devices {named}: write cpu, or cuda with a number such as cuda:0, instead of {name!r}.",
            )
        if device.type == "cuda" and device.index >= gpus:
            raise ConfigError(
                "bad-stage-devices", f"--stage-devices {named}: torch finds {gpus} GPU(s), but no {name}."
            )
        found.append(device)
    if amp not in {"auto", "none"} and len({device.type for device in found}) > 1:
        raise ConfigError(
            "conflicting-settings",
            f"--amp {amp} with --stage-devices {named}: autocast supports one device type, CPU or GPU; set --amp none "
            "to train on both.",
        )
    return found

"""Which device a rank computes on, and whether this torch can use the GPUs that are here."""

from __future__ import annotations

import torch

from slipway.base import startup_time
from slipway.base.environment import Launcher
from slipway.base.gpu import find_gpus, why_unusable
from trainer.config.errors import ConfigError
from trainer.config.settings import Config, Settings

CPU = torch.device("cpu")
AUTO = "auto"
"""Value of --split by which the trainer chooses the cuts."""


def check_gpus() -> None:
    """Compare the driver and the GPUs with what torch was built for, before torch fails or sees none and says nothing.

    Raises:
        ConfigError: if they do not match, naming the variant of the image that does, or if torch fails to open them.
    """
    gpus = find_gpus() if torch.version.cuda else None  # else it is built for CPUs, or for AMD's GPUs
    slug, why = why_unusable(torch, gpus) if gpus else ("", "")
    if why:
        raise ConfigError(slug, f"{why}; --device cpu trains without GPUs.")


def pick_device(settings: Settings, local_rank: int, launcher: Launcher) -> torch.device:
    """Return this rank's device: that of its first stage, if the model is split.

    A launcher that binds GPUs to ranks leaves each just its own, numbered from 0; otherwise local rank r takes the
    devices k r to k r + k - 1, of k for each rank.

    Raises:
        ConfigError: if GPUs are asked for and there are too few, or torch cannot use those that are there.
    """
    device = _device_of(settings, local_rank, launcher, gpus=_count_gpus(settings))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    startup_time.mark(startup_time.DEVICE)
    return device


def _count_gpus(settings: Settings) -> int:
    """Return how many GPUs torch may use.

    Raises:
        ConfigError: if it cannot use those that are there.
    """
    if settings.launch.device == "cpu":
        return 0
    check_gpus()
    return torch.cuda.device_count()


def _device_of(settings: Settings, local_rank: int, launcher: Launcher, *, gpus: int) -> torch.device:
    """Return what ``pick_device`` does, with so many GPUs, and open none."""
    launch, each = settings.launch, devices_of_rank(settings)
    if launch.stage_devices:
        return _named_devices(settings, launch.stage_devices, gpus=gpus)[0]
    if gpus:
        return torch.device("cuda", _first_gpu(gpus, each, local_rank, bound=launcher.binds_gpus))
    if launch.device == "cuda":
        raise ConfigError(
            "no-gpu", "--device cuda, but torch sees no GPU here: is the driver passed in (apptainer --nv)?"
        )
    return CPU


def ranks_for_gpus(settings: Settings) -> int:
    """Return how many ranks the GPUs of this machine are enough for: ``--nproc-per-node auto``.

    Raises:
        ConfigError: if for none, or torch cannot use those that are there.
    """
    count, each = _count_gpus(settings), devices_of_rank(settings)
    if count < each:
        raise ConfigError(
            "no-gpu",
            f"--nproc-per-node auto starts a rank for each {'GPU' if each == 1 else f'{each} GPUs'}, and there are "
            f"{count} to use: give the number of ranks, as --nproc-per-node 2.",
        )
    return count // each


def require_gpus(settings: Settings, ranks: int) -> None:
    """Make sure that each of so many ranks of ``--nproc-per-node`` gets its device.

    Raises:
        ConfigError: as ``pick_device`` does for the first that gets none.
    """
    count = _count_gpus(settings)
    for local_rank in range(ranks):
        _device_of(settings, local_rank, Launcher.SPAWN, gpus=count)


def _first_gpu(count: int, each: int, local_rank: int, *, bound: bool) -> int:
    """Return the number of the first of the ``each`` GPUs of a rank, of ``count`` that torch sees."""
    first = 0 if bound and count == each else local_rank * each
    if first + each > count:
        takes = "has no GPU" if each == 1 else f"takes GPUs {first} to {first + each - 1}"
        raise ConfigError(
            "too-few-gpus",
            f"local rank {local_rank} {takes}, torch sees {count}: start at most one rank per "
            f"{'GPU' if each == 1 else f'{each} GPUs'}.",
        )
    return first


def stages_of(settings: Settings) -> int:
    """Return into how many stages the model is cut.

    Raises:
        ConfigError: if nothing says it.
    """
    launch = settings.launch
    if settings.model.split != AUTO:
        return 1 + len(cuts_of(settings))
    if launch.stage_devices:
        return len(launch.stage_devices.split(","))
    if launch.devices_per_rank:
        return launch.devices_per_rank
    raise ConfigError(
        "conflicting-settings", "--split auto needs --devices-per-rank, or --stage-devices: the number of stages."
    )


def cuts_of(config: Config) -> list[str]:
    """Return the submodules before which the model is to be cut, as far as they are named."""
    split = config.model.split
    return [name.strip() for name in split.split(",")] if split and split != AUTO else []


def devices_of_rank(settings: Settings) -> int:
    """Return how many devices each rank takes: one for each stage, unless it is set."""
    return settings.launch.devices_per_rank or stages_of(settings)


def stage_devices(settings: Settings, first: torch.device) -> list[torch.device]:
    """Return the device of each stage, of a rank whose own one is ``first``.

    Raises:
        ConfigError: if --stage-devices names others than there are, not one for each stage, or CPU and GPU together
            where mixed precision is asked for.
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
            f"--stage-devices {named} names {len(names)} device(s), and the model has {stages} stage(s).",
        )
    found = []
    for name in names:
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ConfigError(
                "bad-stage-devices", f"--stage-devices {named}: {name!r} is no device; write cpu, or cuda:0."
            ) from error
        if device.type not in {"cpu", "cuda"} or (device.type == "cuda" and device.index is None):
            raise ConfigError(
                "bad-stage-devices",
                f"--stage-devices {named}: write cpu, or cuda and a number, as cuda:0, for {name!r}.",
            )
        if device.type == "cuda" and device.index >= gpus:
            raise ConfigError(
                "bad-stage-devices", f"--stage-devices {named}: there are {gpus} GPU(s) to use, and no {name}."
            )
        found.append(device)
    if amp not in {"auto", "none"} and len({device.type for device in found}) > 1:
        raise ConfigError(
            "conflicting-settings",
            f"--amp {amp} with --stage-devices {named}: autocast computes on one type of device, CPU or GPU; "
            "--amp none trains on both.",
        )
    return found

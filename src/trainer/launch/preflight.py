"""``python -m trainer.launch.preflight ARGUMENTS``: check whether the trainer can start on this node.

A job script runs it once on each node before it starts any rank. It takes about a second and prints one message
instead of a traceback from each rank. It checks what only the node can see; the job script has checked the rest.
"""

from __future__ import annotations

import os
import re
import socket
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from slipway.base.environment import Environment, read_environment
from slipway.base.errors import FolderNotWritableError, SlipwayError, error_line
from slipway.run.lock import Lock
from trainer.config.errors import ConfigError
from trainer.config.plugin import SEPARATOR, find_factory

if TYPE_CHECKING:
    from trainer.config.settings import Config, Settings

NEEDED = (
    "matplotlib",
    "msgspec",
    "numpy",
    "PIL",
    "safetensors",
    "tomli_w",
    "torch",
    "torchvision",
    "tqdm",
)
"""Packages that the trainer always imports."""

BUNDLED = ("digits", "synthetic")
"""Data sets that need no folder."""
FAMILIES = ("Open MPI", "Intel", "MVAPICH", "MPICH", "Hydra")
"""Names of MPI implementations in their own version strings and in their launchers'."""
OLDEST_PMIX = [2, 1]
"""Oldest PMIx version that is compatible with all later ones (the PMIx FAQ, on containers)."""


def main() -> int:
    """Check this node and return the exit code: 0, 2 for a wrong option, or 78."""
    try:
        check_packages()
        from trainer.config.cli import parse  # noqa: PLC0415 -- it needs some of these packages

        settings = parse(sys.argv[1:])
        environment = read_environment(os.environ)
        check_folders(settings)
        check_lock(Path(settings.launch.output_dir or ""), environment)
        check_mpi(environment.mpi, environment.pmix)
        check_plugins(settings)
        check_device(settings, environment)
    except SlipwayError as error:
        print(f"trainer: {socket.gethostname()}: {error_line(error)}", file=sys.stderr)
        return error.exit_code
    return 0


def check_packages() -> None:
    """Check that this Python has the packages that the trainer imports: published images hold torch and little else.

    Raises:
        ConfigError: if packages are missing. The message lists them.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            "missing-package",
            f"this Python ({sys.executable}) lacks {', '.join(missing)}: use an image that `make image` built, or run "
            "a user script (SLIPWAY_SCRIPT) in this one.",
        )


def check_folders(settings: Settings) -> None:
    """Check that this node can read the data and write to the run folder.

    Raises:
        ConfigError: if not. The message has the folder's path.
    """
    data, output = Path(settings.data.data_dir), Path(settings.launch.output_dir or "")
    name = settings.data.dataset
    needs_folder = name not in BUNDLED and SEPARATOR not in name and not settings.data.download
    if needs_folder and not os.access(data, os.R_OK if data.is_file() else os.R_OK | os.X_OK):
        raise ConfigError(
            "data-unreadable",
            f"cannot read --data-dir {data}: is it on a disk that all nodes share, and bound into the container?",
        )
    try:
        with tempfile.NamedTemporaryFile(dir=output, prefix=".preflight."):
            pass
    except OSError as error:
        raise ConfigError(
            "cannot-write",
            f"cannot write to --output-dir {output}: {error.strerror}. It must be on a disk that all nodes share, and "
            "bound into the container.",
        ) from error


def check_plugins(config: Config) -> None:
    """Import the user-defined model and data set, if any.

    Raises:
        ConfigError: if one cannot be imported on this node. The message has its name.
    """
    for option, name in {"--dataset": config.data.dataset, "--arch": config.model.arch}.items():
        if SEPARATOR in name:
            find_factory(option, name)


def check_lock(folder: Path, environment: Environment) -> None:
    """Check that no other run owns ``folder``, because the job script will write its own files there.

    Raises:
        FolderInUseError: if another run does. The message has the owner.
        FolderNotWritableError: if the lock cannot be checked.
    """
    try:
        Lock(folder, job_id=environment.job_id, attempt=environment.attempt).require_free()
    except OSError as error:
        raise FolderNotWritableError(folder=folder, reason=error.strerror) from error


def check_mpi(outside: str, pmix: str) -> None:
    """Compare the MPI that will start the ranks with the MPI in this environment.

    If they do not match, each rank would be rank 0 of a world of size 1.

    Args:
        outside: the node's output of ``mpirun --version`` or ``srun --mpi=list``; "" for a run without MPI.
        pmix: version of the PMIx that started this process; "" if this process was started in another way.

    Raises:
        ConfigError: if the ranks could not connect to each other.
    """
    if not outside:
        return
    import mpi4py  # noqa: PLC0415 -- most runs have no MPI

    mpi4py.rc.initialize = False
    from mpi4py.MPI import Get_library_version  # noqa: PLC0415

    inside = " ".join(Get_library_version().split(",")[0].replace("\0", "").split())
    remedy = "Use horovod-gloo, which needs no MPI, or an image built with the MPI of the nodes."
    if "plugin" in outside:  # the output of srun --mpi=list
        if "pmix" not in outside or "Open MPI" not in inside:
            raise ConfigError(
                "mpi-mismatch", f"{inside} needs PMIx, but srun supports only {' '.join(outside.split()[4:])}. {remedy}"
            )
    elif _family(outside) != _family(inside):
        raise ConfigError(
            "mpi-mismatch", f"the ranks' MPI is {inside}, but their launcher is {outside.splitlines()[0]}. {remedy}"
        )
    if pmix and [int(number) for number in re.findall(r"\d+", pmix)[:2]] < OLDEST_PMIX:
        raise ConfigError(
            "mpi-mismatch",
            f"the nodes' PMIx {pmix} is not compatible with newer ones, such as that of {inside}. {remedy}",
        )


def _family(version: str) -> tuple[str, str]:
    """Return the name of an MPI implementation and its major version."""
    name = next((name for name in FAMILIES if name.lower() in version.lower()), version)
    number = re.search(r"\d+(?=\.\d)", version)
    return name, number[0] if number else ""


def check_device(settings: Settings, environment: Environment) -> None:
    """Check the driver and the number of GPUs, and allocate memory on each visible GPU.

    Raises:
        ConfigError: if the settings require GPUs and there are too few, or if one does not work.
    """
    requested = settings.launch.device
    if requested == "cpu":
        return
    import torch  # noqa: PLC0415 -- it takes seconds, and the error for a wrong folder should not wait for it

    from trainer.parallel.device import check_gpus  # noqa: PLC0415 -- it imports torch, too

    check_gpus()
    count = torch.cuda.device_count()
    if requested == "cuda" and not count:
        raise ConfigError(
            "no-gpu",
            "--device cuda, but torch finds no GPU: request GPUs from the scheduler, or set SLIPWAY_DEVICE=cpu.",
        )
    check_gpu_count(settings, environment, count)
    for index in range(count):
        try:
            torch.zeros(1, device=f"cuda:{index}")
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                "broken-gpu", f"GPU {index} does not work: {reason}; run nvidia-smi on this node."
            ) from error


def check_gpu_count(settings: Settings, environment: Environment, count: int) -> None:
    """Compare the GPUs that this node's ranks need with ``count``, the GPUs that torch finds here.

    If the job binds each rank to its own GPUs, this process is not a rank and may see all of the node's GPUs or only
    some. Compare only the planned numbers then.

    Raises:
        ConfigError: if there are too few GPUs. The message has the setting to change.
    """
    from trainer.parallel.device import devices_of_rank  # noqa: PLC0415 -- it imports torch

    ranks, bound = environment.planned_ranks_per_node, environment.variables.get("TRAINER_BOUND_GPUS", "")
    if not count or not ranks.isdecimal() or settings.launch.stage_devices:
        return
    each = devices_of_rank(settings)
    if bound.isdecimal():
        if each != int(bound):
            raise ConfigError(
                "too-few-gpus",
                f"each rank needs {each} GPU(s), but the job binds it to {bound}: set SLIPWAY_DEVICES_PER_RANK={each}.",
            )
        return
    if count == each == 1:  # a launcher may bind this process, and later each rank, to one GPU
        return
    if each * int(ranks) > count:
        raise ConfigError(
            "too-few-gpus",
            f"{ranks} rank(s) with {each} GPU(s) each need {each * int(ranks)} per node, but torch finds {count} here: "
            + _gpu_remedy(each, count),
        )


def _gpu_remedy(each: int, count: int) -> str:
    """Return the remedy that fits ranks of ``each`` GPUs into ``count``."""
    if each == 1:
        return f"set SLIPWAY_RANKS_PER_NODE={count}, or request more GPUs from the scheduler."
    if each > count:
        return f"request at least {each} per node from the scheduler, and set SLIPWAY_DEVICES_PER_RANK={each}."
    return f"set SLIPWAY_DEVICES_PER_RANK={each}, and leave SLIPWAY_RANKS_PER_NODE empty or set it to {count // each}."


if __name__ == "__main__":
    sys.exit(main())

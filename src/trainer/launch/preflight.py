"""``python -m trainer.launch.preflight ARGUMENTS``: whether the trainer would start on this node with them.

A job script runs it once on each node before it starts any rank: in a second, and in words, it tells what would
otherwise be a hundred tracebacks. It looks at what only the node can see; the script itself has looked at the rest.
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
from slipway.base.errors import FolderNotWritableError, SlipwayError, message_of
from slipway.base.lock import Lock
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
"""Packages that the trainer imports, whatever it is asked for."""

BUNDLED = ("digits", "synthetic")
"""Data sets that need no folder."""
FAMILIES = ("Open MPI", "Intel", "MVAPICH", "MPICH", "Hydra")
"""How implementations of MPI, and their launchers, call themselves."""
OLDEST_PMIX = [2, 1]
"""From here on, PMIx on one side speaks to any other one on the other (its FAQ, on containers)."""


def main() -> int:
    """Check this node and return the exit code: 0, 2 for a wrong flag, or 78."""
    try:
        check_packages()
        from trainer.config.cli import parse  # noqa: PLC0415 -- it needs some of them

        settings = parse(sys.argv[1:])
        environment = read_environment(os.environ)
        check_folders(settings)
        check_lock(Path(settings.launch.output_dir or ""), environment)
        check_mpi(environment.mpi, environment.pmix)
        check_plugins(settings)
        check_device(settings, environment)
    except SlipwayError as error:
        print(f"trainer: {socket.gethostname()}: {message_of(error)}", file=sys.stderr)
        return error.exit_code
    return 0


def check_packages() -> None:
    """Make sure that this Python has what the trainer imports: published images hold torch and little else.

    Raises:
        ConfigError: naming all that is missing.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            "missing-package",
            f"this Python ({sys.executable}) lacks {', '.join(missing)}: take an image that `make image` built, or "
            "run a script of your own (SLIPWAY_SCRIPT) in this one.",
        )


def check_folders(settings: Settings) -> None:
    """Make sure that data can be read and the run folder written from here.

    Raises:
        ConfigError: naming the folder.
    """
    data, output = Path(settings.data.data_dir), Path(settings.launch.output_dir or "")
    name = settings.data.dataset
    needs_folder = name not in BUNDLED and SEPARATOR not in name and not settings.data.download
    if needs_folder and not os.access(data, os.R_OK if data.is_file() else os.R_OK | os.X_OK):
        raise ConfigError(
            "data-unreadable",
            f"cannot read --data-dir {data}: is it on a disk of all nodes, and bound into the container?",
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
    """Import models and data sets of the user's own.

    Raises:
        ConfigError: naming what cannot be found from here.
    """
    for option, name in {"--dataset": config.data.dataset, "--arch": config.model.arch}.items():
        if SEPARATOR in name:
            find_factory(option, name)


def check_lock(folder: Path, environment: Environment) -> None:
    """Make sure that no other run owns ``folder``: the job script is going to put its own files there.

    Raises:
        FolderInUseError: naming the owner.
        FolderNotWritableError: if there is no telling.
    """
    try:
        Lock(folder, job_id=environment.job_id, attempt=environment.attempt).require_free()
    except OSError as error:
        raise FolderNotWritableError(folder=folder, reason=error.strerror) from error


def check_mpi(outside: str, pmix: str) -> None:
    """Compare the MPI that is going to start the ranks with the one in here.

    ``outside`` is what ``mpirun --version`` or ``srun --mpi=list`` said there, "" for a run without MPI; ``pmix`` the
    version of the PMIx by which it tells ranks of each other, "" if this process was started in another way. Ranks
    that a foreign MPI starts would each be rank 0 of 1.

    Raises:
        ConfigError: if the ranks could not find each other.
    """
    if not outside:
        return
    import mpi4py  # noqa: PLC0415 -- most runs have no MPI

    mpi4py.rc.initialize = False
    from mpi4py.MPI import Get_library_version  # noqa: PLC0415

    inside = " ".join(Get_library_version().split(",")[0].replace("\0", "").split())
    remedy = "Use horovod-gloo, which needs no MPI, or an image built with the MPI of the nodes."
    if "plugin" in outside:  # srun lists what it can speak
        if "pmix" not in outside or "Open MPI" not in inside:
            raise ConfigError(
                "mpi-mismatch", f"{inside} needs PMIx, and srun offers {' '.join(outside.split()[4:])}. {remedy}"
            )
    elif _family(outside) != _family(inside):
        raise ConfigError(
            "mpi-mismatch", f"the ranks' MPI is {inside}, and what starts them {outside.splitlines()[0]}. {remedy}"
        )
    if pmix and [int(number) for number in re.findall(r"\d+", pmix)[:2]] < OLDEST_PMIX:
        raise ConfigError(
            "mpi-mismatch", f"the nodes' PMIx {pmix} cannot speak to newer ones, such as that of {inside}. {remedy}"
        )


def _family(version: str) -> tuple[str, str]:
    """Return the name of an MPI and its major version."""
    name = next((name for name in FAMILIES if name.lower() in version.lower()), version)
    number = re.search(r"\d+(?=\.\d)", version)
    return name, number[0] if number else ""


def check_device(settings: Settings, environment: Environment) -> None:
    """Compare torch with the driver and the GPUs, these with the ranks, and allocate on every one that is visible here.

    Raises:
        ConfigError: if GPUs are asked for and there are too few, or one does not work.
    """
    requested = settings.launch.device
    if requested == "cpu":
        return
    import torch  # noqa: PLC0415 -- it takes seconds, and a wrong folder should not wait for it

    from trainer.parallel.device import check_gpus  # noqa: PLC0415 -- likewise

    check_gpus()
    count = torch.cuda.device_count()
    if requested == "cuda" and not count:
        raise ConfigError(
            "no-gpu", "--device cuda, but torch sees no GPU: ask the scheduler for some, or set SLIPWAY_DEVICE=cpu."
        )
    check_gpu_count(settings, environment, count)
    for index in range(count):
        try:
            torch.zeros(1, device=f"cuda:{index}")
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                "broken-gpu", f"GPU {index} does not work: {reason}; what does nvidia-smi say there?"
            ) from error


def check_gpu_count(settings: Settings, environment: Environment, count: int) -> None:
    """Compare the GPUs that the ranks of this node take with those that torch sees here, which are ``count``.

    Where ranks are going to be bound to GPUs of their own, this process, which is no rank, may see all of the node's or
    a part of them: there the numbers of the plan are compared.

    Raises:
        ConfigError: if they are too few, naming the setting.
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
                f"each rank takes {each} GPU(s), and the job binds it to {bound}: set SLIPWAY_DEVICES_PER_RANK={each}.",
            )
        return
    if count == each == 1:  # a launcher may have bound this process, and be going to bind each rank, to one GPU
        return
    if each * int(ranks) > count:
        raise ConfigError(
            "too-few-gpus",
            f"{ranks} rank(s) with {each} GPU(s) each take {each * int(ranks)} on a node, and torch sees {count} here: "
            + _fewer_ranks(each, count),
        )


def _fewer_ranks(each: int, count: int) -> str:
    """Return what to set so that ranks of ``each`` GPUs find them among ``count``."""
    if each == 1:
        return f"set SLIPWAY_RANKS_PER_NODE={count}, or ask the scheduler for more."
    if each > count:
        return f"ask the scheduler for at least {each} on each node, and set SLIPWAY_DEVICES_PER_RANK={each}."
    return f"set SLIPWAY_DEVICES_PER_RANK={each}, and leave SLIPWAY_RANKS_PER_NODE empty or set it to {count // each}."


if __name__ == "__main__":
    sys.exit(main())

"""Which process of which world this is: found in what the launcher set, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from slipway.errors import AloneError, RanksContradictoryError, RanksNotNamedError, WorldSizeError

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""What torchrun, or a job script that starts one process a rank, sets for each rank."""

SIZE_VARIABLES = {
    "WORLD_SIZE": "torchrun or a job script",
    "HOROVOD_SIZE": "horovodrun",
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an MPI launcher",
    "SLURM_STEP_NUM_TASKS": "srun",
}
"""Variables that say how many processes a launcher started, and which one that is. No World is made of them."""


class World(NamedTuple):
    """The place of this process among all that train together."""

    rank: int = 0
    """From 0 to ``size - 1`` over all nodes."""
    size: int = 1
    local_rank: int = 0
    """From 0 to ``local_size - 1`` on this node."""
    local_size: int = 1


def world_from_environment(env: Mapping[str, str]) -> World:
    """Return the world that RANK, WORLD_SIZE and LOCAL_RANK describe; ``local_size`` is not known yet.

    Raises:
        RanksNotNamedError: if one is missing.
        RanksContradictoryError: if one is not a number, or out of range.
    """
    if missing := [name for name in RANK_VARIABLES if name not in env]:
        raise RanksNotNamedError(needed=", ".join(RANK_VARIABLES), missing=", ".join(missing))
    values = ", ".join(f"{name}={env[name]}" for name in RANK_VARIABLES)
    try:
        rank, size, local_rank = (int(env[name]) for name in RANK_VARIABLES)
    except ValueError:
        raise RanksContradictoryError(values=values, rule="these must be whole numbers") from None
    if not (0 <= rank < size and 0 <= local_rank <= rank):
        raise RanksContradictoryError(values=values, rule="0 <= LOCAL_RANK <= RANK < WORLD_SIZE must hold")
    return World(rank, size, local_rank)


def launched_with_others(env: Mapping[str, str]) -> str:
    """Return the variable by which a launcher says that it started more than this process; "" if there is none."""
    return next((name for name in SIZE_VARIABLES if env.get(name, "1") != "1"), "")


def check_size(size: int, env: Mapping[str, str]) -> None:
    """Compare the size of the world with what the launcher started and with what was planned (TRAINER_WORLD_SIZE).

    N copies of "rank 0 of 1" would each train alone and overwrite each other.

    Raises:
        AloneError: if this process is the whole world, and a launcher started others.
        WorldSizeError: if the world has another size than planned.
    """
    if size == 1 and (name := launched_with_others(env)):
        raise AloneError(variable=name, value=env[name], launcher=SIZE_VARIABLES[name])
    planned = env.get("TRAINER_WORLD_SIZE", "")
    if planned and planned != str(size):
        raise WorldSizeError(size=size, planned=planned)

"""Which process of which world this is: found in what the launcher set, never guessed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trainer.errors import ConfigError

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""What torchrun, or a job script that starts one process a rank, sets for each rank."""

SIZE_VARIABLES = {
    "WORLD_SIZE": "torchrun or a job script: run it with --backend ddp",
    "HOROVOD_SIZE": "horovodrun: run it with --backend horovod",
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun: run it with --backend horovod",
    "PMI_SIZE": "an MPI launcher: run it with --backend horovod",
    "SLURM_STEP_NUM_TASKS": "srun: run it with --backend horovod, or with one of jobscripts/, which name the ranks",
}
"""Variables that say how many processes a launcher started, and what to do where they contradict the backend."""


@dataclass(frozen=True)
class World:
    """The place of this process among all that train together.

    ``rank`` counts from 0 to ``size - 1`` over all nodes, ``local_rank`` from 0 to ``local_size - 1`` on this node.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1


def ranks_from_environment(env: Mapping[str, str]) -> tuple[int, int, int]:
    """Return (rank, world size, local rank) as ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK`` say.

    Raises:
        ConfigError: if one is missing, not a number, or out of range.
    """
    if missing := [name for name in RANK_VARIABLES if name not in env]:
        raise ConfigError(
            f"--backend ddp needs {', '.join(RANK_VARIABLES)}, and {', '.join(missing)} not set. "
            "Start it with torchrun, with --nproc-per-node N, or name the ranks in the job script."
        )
    try:
        rank, size, local_rank = (int(env[name]) for name in RANK_VARIABLES)
    except ValueError:
        values = ", ".join(f"{name}={env[name]!r}" for name in RANK_VARIABLES)
        raise ConfigError(f"{values}: these must be whole numbers; look at what starts the ranks.") from None
    if not (0 <= rank < size and 0 <= local_rank <= rank):
        raise ConfigError(
            f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local_rank} contradict each other: "
            "0 <= LOCAL_RANK <= RANK < WORLD_SIZE must hold; look at what starts the ranks."
        )
    return rank, size, local_rank


def launched_with_others(env: Mapping[str, str]) -> str:
    """Return the variable by which a launcher says that it started more than this process; "" if there is none."""
    return next((name for name in SIZE_VARIABLES if env.get(name, "1") != "1"), "")


def check_size(size: int, env: Mapping[str, str]) -> None:
    """Compare the size of the world with what the launcher started and with what was planned (TRAINER_WORLD_SIZE).

    Raises:
        ConfigError: if they differ: N copies of "rank 0 of 1" would each train alone and overwrite each other.
    """
    if size == 1 and (name := launched_with_others(env)):
        raise ConfigError(f"this process is alone, but {name}={env[name]}: it was started by {SIZE_VARIABLES[name]}.")
    planned = env.get("TRAINER_WORLD_SIZE", "")
    if planned and planned != str(size):
        raise ConfigError(
            f"the world has {size} ranks, but {planned} were planned (TRAINER_WORLD_SIZE): the launcher and the "
            "MPI library of the image may not match, or a node did not start."
        )

"""Launcher and job-script environment variables, read once, and the world that they describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from slipway.base.contract import EXIT_STOPPED
from slipway.base.errors import (
    AttemptNumberError,
    InvalidRankVariablesError,
    MissingRankVariablesError,
    RendezvousError,
    SingleProcessError,
    WorldSizeError,
)
from slipway.base.stop import Reason


class World(NamedTuple):
    """Rank and world size of this process, as reported by the library that joined the ranks, never guessed."""

    rank: int = 0
    """Rank over all nodes, from 0 to ``size - 1``."""
    size: int = 1
    local_rank: int = 0
    """Rank on this node, from 0 to ``local_size - 1``."""
    local_size: int = 1

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, the only rank that writes the run folder and logs for all."""
        return self.rank == 0

    @property
    def is_local_root(self) -> bool:
        """Whether this is local rank 0, which does the work that is needed once on each node."""
        return self.local_rank == 0


RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""Variables that torchrun, or a job script that starts one process per rank, sets for each rank."""

SIZE_VARIABLES = {
    "WORLD_SIZE": "torchrun or a job script",
    "HOROVOD_SIZE": "horovodrun",
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an MPI launcher",
    "SLURM_STEP_NUM_TASKS": "srun",
}
"""Variables with the number of processes that a launcher started, and the launcher. They do not define a World."""

RECORDED = (
    "CUDA_VISIBLE_DEVICES",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "RANK",
    "TRAINER_ATTEMPT",
    "TRAINER_JOB_ID",
    "TRAINER_WORLD_SIZE",
    "WORLD_SIZE",
)
"""The only variables that a run folder records, because others may contain tokens."""


class Launcher(Enum):
    """Program that started this process, as far as the process's behavior depends on it."""

    TORCHRUN = "torchrun"
    """Holds the rendezvous store, and exposes all GPUs of a node to all its ranks."""
    SPAWN = "--nproc-per-node"
    """``trainer.launch.spawn``: also exposes all GPUs to all ranks, and returns the exit code of a stopped rank."""
    OTHER = "another"
    """A job script through srun, mpirun or ssh, horovodrun, or a user."""

    @property
    def binds_gpus(self) -> bool:
        """Whether the launcher may have exposed only one of several GPUs to this rank."""
        return self is Launcher.OTHER


@dataclass(frozen=True)
class Siblings:
    """Evidence that a launcher started more processes than this one."""

    variable: str
    value: str
    launcher: str


@dataclass(frozen=True)
class Environment:
    """Variables that a run uses; docs/reference/environment-variables.md lists which program sets each."""

    variables: Mapping[str, str] = field(repr=False)  # some contain tokens
    launcher: Launcher
    attempt: int
    """Number of the attempt from the job script; 0 without one."""
    job_id: str
    """ID of the scheduler's job; "" without a job."""
    planned_size: str
    """Planned number of ranks; "" if it is not set."""
    planned_ranks_per_node: str
    threads: int | None
    """OMP_NUM_THREADS if it is a number, else None."""
    agent_restart: int | None
    """Number of restarts by torchrun's agent if the agent holds the ranks' store on a single node, else None."""
    run_dir: str
    """Run folder from the job script; "" if it is not set."""
    quota: str | None
    """Remaining quota of the run folder, as quota_left.sh prints it; None if it was not queried."""
    umask: int | None
    """Umask for this rank's files, if the job script sets it, else None."""
    trackers: str
    """Value of SLIPWAY_TRACKERS: names of trackers, separated by commas."""
    inductor_cache: str
    """Cache folder of torch.compile; "" for torch's default."""
    mpi: str
    """Version text of the MPI that starts the ranks; "" if MPI does not start them."""
    pmix: str
    """Version of PMIx that starts the ranks; "" without PMIx."""
    siblings: Siblings | None
    """Evidence of other processes; None if no variable shows that this process is one of several."""

    @property
    def is_ranked(self) -> bool:
        """Whether a launcher has set the RANK variable for torch.distributed."""
        return "RANK" in self.variables

    @property
    def may_be_root(self) -> bool:
        """Whether this process may be rank 0, from the variables alone, before the ranks have joined."""
        return self.variables.get("RANK", "0") == "0"

    @property
    def recorded(self) -> dict[str, str]:
        """Variables to record in the run folder, with their values."""
        return {name: self.variables[name] for name in RECORDED if name in self.variables}

    @property
    def local_rank(self) -> int:
        """Local rank from the launcher; 0 if it is not set."""
        number = self.variables.get("LOCAL_RANK", "")
        return int(number) if number.isdecimal() else 0

    def exit_code(self, reason: Reason, *, ranks: int) -> int:
        """Return the exit code of a rank that ends without an error.

        Launchers treat a code other than 0 as a failure, and kill ranks that are still saving. The death of a launcher
        is a failure, after which the launchers on other nodes may restart their ranks.

        Args:
            reason: why training stopped early; NONE at the end of the run.
            ranks: the world size.
        """
        alone = ranks == 1 and self.launcher is not Launcher.TORCHRUN
        handed_on = alone or self.launcher is Launcher.SPAWN or reason is Reason.LAUNCHER
        return EXIT_STOPPED if reason and handed_on else 0

    def world(self) -> World:
        """Return the world that RANK, WORLD_SIZE and LOCAL_RANK describe; ``local_size`` is not set yet.

        Raises:
            MissingRankVariablesError: if a variable is missing.
            InvalidRankVariablesError: if a variable is not a number, or is out of range.
        """
        env = self.variables
        if missing := [name for name in RANK_VARIABLES if name not in env]:
            raise MissingRankVariablesError(needed=", ".join(RANK_VARIABLES), missing=", ".join(missing))
        values = ", ".join(f"{name}={env[name]}" for name in RANK_VARIABLES)
        try:
            rank, size, local_rank = (int(env[name]) for name in RANK_VARIABLES)
        except ValueError:
            raise InvalidRankVariablesError(values=values, rule="these must be whole numbers") from None
        if not (0 <= rank < size and 0 <= local_rank <= rank):
            raise InvalidRankVariablesError(values=values, rule="0 <= LOCAL_RANK <= RANK < WORLD_SIZE must hold")
        return World(rank, size, local_rank)

    def check_size(self, size: int) -> None:
        """Check the world size against the launcher's number of processes and the planned number of ranks.

        N copies of "rank 0 of 1" would each train alone and overwrite each other's files.

        Raises:
            SingleProcessError: if the world has one process, but a launcher started several.
            WorldSizeError: if the world size differs from the planned one.
        """
        if size == 1 and (found := self.siblings):
            raise SingleProcessError(variable=found.variable, value=found.value, launcher=found.launcher)
        if self.planned_size and self.planned_size != str(size):
            raise WorldSizeError(size=size, planned=self.planned_size)

    def master(self) -> tuple[str, int]:
        """Return the address and port at which rank 0 must listen.

        Raises:
            RendezvousError: if MASTER_ADDR or MASTER_PORT is missing, or MASTER_PORT is not a number.
        """
        env = self.variables
        if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env]:
            raise RendezvousError(missing=" and ".join(missing))
        if not env["MASTER_PORT"].isdecimal():
            raise RendezvousError(missing=f"a number in MASTER_PORT, not {env['MASTER_PORT']!r}")
        return env["MASTER_ADDR"], int(env["MASTER_PORT"])


def read_environment(variables: Mapping[str, str]) -> Environment:
    """Return the Environment from ``variables``, usually ``os.environ``.

    Raises:
        AttemptNumberError: if TRAINER_ATTEMPT is not a whole number.
    """
    launcher = Launcher.OTHER
    if "TORCHELASTIC_RUN_ID" in variables:
        launcher = Launcher.TORCHRUN
    elif "TRAINER_SPAWNED" in variables:
        launcher = Launcher.SPAWN
    attempt = variables.get("TRAINER_ATTEMPT", "")
    if attempt and not (attempt.isascii() and attempt.isdecimal()):
        raise AttemptNumberError(variable="TRAINER_ATTEMPT", value=attempt)
    threads = variables.get("OMP_NUM_THREADS", "")
    # On several nodes the agents' counts differ: only the agent whose rank failed counts a restart.
    agent_store = variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and variables.get("GROUP_WORLD_SIZE") == "1"
    restarts = variables.get("TORCHELASTIC_RESTART_COUNT", "0")
    umask = variables.get("TRAINER_UMASK", "")
    siblings = [name for name in SIZE_VARIABLES if variables.get(name, "1") != "1"]
    return Environment(
        variables=dict(variables),
        launcher=launcher,
        attempt=int(attempt or 0),
        job_id=variables.get("TRAINER_JOB_ID", ""),
        planned_size=variables.get("TRAINER_WORLD_SIZE", ""),
        planned_ranks_per_node=variables.get("TRAINER_RANKS_PER_NODE", ""),
        threads=(int(threads) or None) if threads.isdecimal() else None,
        agent_restart=int(restarts) if agent_store and restarts.isdecimal() else None,
        run_dir=variables.get("RUN_DIR", ""),
        quota=variables.get("TRAINER_QUOTA"),
        umask=int(umask, 8) if re.fullmatch("[0-7]{3}", umask) else None,
        trackers=variables.get("SLIPWAY_TRACKERS", ""),
        inductor_cache=variables.get("TORCHINDUCTOR_CACHE_DIR", ""),
        mpi=variables.get("TRAINER_MPI", ""),
        pmix=variables.get("PMIX_VERSION", ""),
        siblings=Siblings(siblings[0], variables[siblings[0]], SIZE_VARIABLES[siblings[0]]) if siblings else None,
    )

"""Environment variables of launchers and job scripts, read once, and the world that they describe."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from slipway.base.contract import EXIT_STOPPED
from slipway.base.errors import (
    AloneError,
    AttemptNumberError,
    RanksContradictoryError,
    RanksNotNamedError,
    RendezvousError,
    WorldSizeError,
)
from slipway.base.stop import Reason


class World(NamedTuple):
    """The place of this process among all that train together: found by what joins them, never guessed."""

    rank: int = 0
    """From 0 to ``size - 1`` over all nodes."""
    size: int = 1
    local_rank: int = 0
    """From 0 to ``local_size - 1`` on this node."""
    local_size: int = 1

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which alone writes the run folder and speaks for all."""
        return self.rank == 0

    @property
    def is_first_of_node(self) -> bool:
        """Whether this rank does what is to be done once on each node."""
        return self.local_rank == 0


RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
"""What torchrun, or a job script that starts one process a rank, sets for each rank."""

SIZE_VARIABLES = {
    "WORLD_SIZE": "torchrun or a job script",
    "HOROVOD_SIZE": "horovodrun",
    "OMPI_COMM_WORLD_SIZE": "Open MPI's mpirun",
    "PMI_SIZE": "an MPI launcher",
    "SLURM_STEP_NUM_TASKS": "srun",
}
"""Variables that say how many processes a launcher started, and which launcher that is. No World is made of them."""

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
"""The only variables that a run folder records; never all of them, for some hold tokens."""


class Launcher(Enum):
    """What started this process, as far as that changes what it does."""

    TORCHRUN = "torchrun"
    """Keeps the store of the rendezvous, and leaves all GPUs of a node to all its ranks."""
    SPAWN = "--nproc-per-node"
    """``trainer.launch.spawn``: leaves all GPUs to all ranks too, and hands on the exit code of a rank that stopped."""
    OTHER = "another"
    """A job script by srun, mpirun or ssh, horovodrun, or a person."""

    @property
    def binds_gpus(self) -> bool:
        """Whether it may have left this rank just one GPU of several."""
        return self is Launcher.OTHER


@dataclass(frozen=True)
class Siblings:
    """A sign that a launcher started more than this process."""

    variable: str
    value: str
    launcher: str


@dataclass(frozen=True)
class Environment:
    """The variables that matter to a run; docs/contract.md says who sets them."""

    variables: Mapping[str, str] = field(repr=False)  # some hold tokens
    launcher: Launcher
    attempt: int
    """Number of the attempt, given by the job script; 0 if nobody gives one."""
    job_id: str
    """The scheduler's job; "" for none."""
    planned_size: str
    """Number of ranks that were planned; "" if nobody planned."""
    planned_ranks_per_node: str
    threads: int | None
    """OMP_NUM_THREADS, where it is a number."""
    agent_restart: int | None
    """How often torchrun's agent has restarted the ranks, where it keeps their store, on one node; else None."""
    run_dir: str
    """The run folder that the job script names; "" if there is none."""
    quota: str | None
    """What quotas leave in the run folder, as quota_left.sh says it; None if nobody has asked."""
    umask: int | None
    """Of the files that this rank makes, where the job script says it."""
    trackers: str
    """The trackers that SLIPWAY_TRACKERS names, separated by commas."""
    inductor_cache: str
    """The folder in which torch.compile keeps what it has made; "" for its own choice."""
    mpi: str
    """What the MPI that starts the ranks says of itself; "" for ranks that MPI does not start."""
    pmix: str
    """Version of the PMIx by which it does; "" for another way."""
    siblings: Siblings | None
    """None: nothing says that this process is one of several."""

    @property
    def is_ranked(self) -> bool:
        """Whether a launcher numbers the ranks for torch.distributed."""
        return "RANK" in self.variables

    @property
    def may_be_root(self) -> bool:
        """Whether this process is rank 0, as far as can be known before the ranks have joined."""
        return self.variables.get("RANK", "0") == "0"

    @property
    def recorded(self) -> dict[str, str]:
        """The variables that a run folder records."""
        return {name: self.variables[name] for name in RECORDED if name in self.variables}

    @property
    def local_rank(self) -> int:
        """The number of this rank on its node, as far as a launcher says; 0 if none does."""
        number = self.variables.get("LOCAL_RANK", "")
        return int(number) if number.isdecimal() else 0

    def exit_code(self, reason: Reason, *, ranks: int) -> int:
        """Return the exit code of a rank that ends in good order, for ``reason`` if before the end of the run.

        Launchers take a code other than 0 for a failure, and kill ranks that still save. The death of one is a failure,
        after which those on other nodes may start their ranks again.
        """
        alone = ranks == 1 and self.launcher is not Launcher.TORCHRUN
        handed_on = alone or self.launcher is Launcher.SPAWN or reason is Reason.LAUNCHER
        return EXIT_STOPPED if reason and handed_on else 0

    def world(self) -> World:
        """Return the world that RANK, WORLD_SIZE and LOCAL_RANK describe; ``local_size`` is not known yet.

        Raises:
            RanksNotNamedError: if one is missing.
            RanksContradictoryError: if one is not a number, or out of range.
        """
        env = self.variables
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

    def check_size(self, size: int) -> None:
        """Compare the size of the world with what the launcher started, and with what was planned.

        N copies of "rank 0 of 1" would each train alone and overwrite each other.

        Raises:
            AloneError: if this process is the whole world, and a launcher started others.
            WorldSizeError: if the world has another size than planned.
        """
        if size == 1 and (found := self.siblings):
            raise AloneError(variable=found.variable, value=found.value, launcher=found.launcher)
        if self.planned_size and self.planned_size != str(size):
            raise WorldSizeError(size=size, planned=self.planned_size)

    def master(self) -> tuple[str, int]:
        """Return the address and the port at which rank 0 is to listen.

        Raises:
            RendezvousError: if MASTER_ADDR or MASTER_PORT is missing, or the latter no number.
        """
        env = self.variables
        if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in env]:
            raise RendezvousError(missing=" and ".join(missing))
        if not env["MASTER_PORT"].isdecimal():
            raise RendezvousError(missing=f"a number in MASTER_PORT, not {env['MASTER_PORT']!r}")
        return env["MASTER_ADDR"], int(env["MASTER_PORT"])


def read_environment(variables: Mapping[str, str]) -> Environment:
    """Return what ``variables``, ``os.environ`` as a rule, say.

    Raises:
        AttemptNumberError: if TRAINER_ATTEMPT is no whole number.
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
    # On several nodes the agents count differently: only the one whose rank has failed counts a restart.
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

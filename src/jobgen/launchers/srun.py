"""Srun, Slurm's own."""

from __future__ import annotations

from typing import List, Tuple

from jobgen.launchers import NAME_NODE, Launcher, name_rank
from jobgen.model import Job
from jobgen.schedulers import Scheduler
from jobgen.shell import Layer, array, option


class Srun(Launcher):
    """A step of a job."""

    name = "srun"
    library = "srun"
    schedulers = ("slurm",)
    mpi_probe = ("srun", "--mpi=list")

    def site_lines(self, job: Job, scheduler: Scheduler) -> List[Tuple[str, str]]:  # noqa: ARG002 -- not needed
        """Return the options that preflight and launch share."""
        return [("srun_options=(--export=ALL --kill-on-bad-exit=1)", "of every step")]

    def one_per_node(self, job: Job) -> List[Layer]:  # noqa: ARG002 -- not needed
        """Return srun with a task a node."""
        return [
            ["srun", option("--nodes", "nnodes"), option("--ntasks", "nnodes"), "--ntasks-per-node=1",
             option("--cpus-per-task", "cpus")],  # since 22.05 srun does not inherit --cpus-per-task
            [array("srun_options")],
            ["sh", NAME_NODE, "slurm"],
        ]  # fmt: skip

    def one_per_rank(self, job: Job, *, named: bool) -> List[Layer]:
        """Return srun with a task a rank.

        ``--gpu-bind=none``: a rank that sees only its own GPU cannot reach its neighbours' directly.
        """
        gpus = "--gpus-per-task=1" if job.site.gpu_per_task else "--gpu-bind=none"
        mpi: Layer = [] if named else ["--mpi=pmix"]
        return [
            ["srun", *mpi, option("--nodes", "nnodes"), option("--ntasks", "world_size"),
             option("--ntasks-per-node", "ranks_per_node"), option("--cpus-per-task", "cpus_per_rank"),
             "--distribution=block", gpus],
            [array("srun_options")],
            *name_rank("slurm", named=named),
        ]  # fmt: skip


LAUNCHER = Srun()

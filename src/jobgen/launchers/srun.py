"""Launcher srun of Slurm."""

from __future__ import annotations

from typing import List, Tuple

from jobgen.base.job import Job
from jobgen.base.shell import Layer, Word, array, option
from jobgen.launchers import NAME_NODE, RANK_LOOP, Launcher, Start, name_rank
from jobgen.schedulers import Scheduler


class Srun(Launcher):
    """Starts processes as a job step."""

    name = "srun"
    library = "srun"
    schedulers = ("slurm",)
    mpi_probe = ("srun", "--mpi=list")
    has_node_loop = True

    def site_lines(self, job: Job, scheduler: Scheduler) -> List[Tuple[str, str]]:  # noqa: ARG002 -- not needed
        """Return the options that preflight and launch share."""
        return [("srun_options=(--export=ALL --kill-on-bad-exit=1)", "of the launch and of the steps before it")]

    def binds_gpus(self, job: Job) -> bool:
        """Return whether the site sets ``bind_gpus`` and each rank is a task."""
        return job.site.bind_gpus and job.spec.placement != "node-by-node"

    def one_per_node(self, job: Job) -> Start:
        """Return srun with one task per node, or one srun per node."""
        if job.spec.placement == "node-by-node":
            return Start([["srun_node_by_node"]], [])
        launch: List[Layer] = [
            ["srun", option("--nodes", "nnodes"), option("--ntasks", "nnodes"), "--ntasks-per-node=1",
             option("--cpus-per-task", "cpus")],  # since 22.05 srun does not inherit --cpus-per-task
            [array("gpu_options"), array("srun_options")],
        ]  # fmt: skip
        return Start(launch, [["sh", NAME_NODE, "slurm"]])

    def one_per_rank(self, job: Job, *, named: bool) -> Start:
        """Return srun with one task per rank, or one srun per node with a loop over its ranks.

        ``--gpus-per-task`` implies ``--gpu-bind=per_task`` with that number: a node's first task gets its first GPUs,
        and so on (srun(1)). Without it each rank sees all GPUs of the node. This is the default because a rank that
        sees only its own GPUs cannot access those of its neighbors directly.
        """
        if job.spec.placement == "node-by-node":
            return Start([["srun_node_by_node"]], [["bash", RANK_LOOP]])
        gpus: Word = option("--gpus-per-task", "devices_per_rank") if self.binds_gpus(job) else array("gpu_options")
        mpi: Layer = [] if named else ["--mpi=pmix"]
        launch: List[Layer] = [
            ["srun", *mpi, option("--nodes", "nnodes"), option("--ntasks", "world_size"),
             option("--ntasks-per-node", "ranks_per_node"), option("--cpus-per-task", "cpus_per_rank"),
             "--distribution=block", gpus],
            [array("srun_options")],
        ]  # fmt: skip
        return Start(launch, name_rank("slurm", named=named))


LAUNCHER = Srun()

"""Slurm: sbatch, srun, scontrol. The one module that names its variables."""

from __future__ import annotations

from typing import Dict, List, Literal

from jobgen.builds import SKELETONS
from jobgen.model import Job, Option
from jobgen.schedulers import Directive, Setting
from jobgen.words import one_line, quote

RANK_OF_TASK = (
    "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS LOCAL_WORLD_SIZE=$TRAINER_RANKS_PER_NODE"
)
"""What a task that srun starts is called by torch."""
EARLY = 60
"""Seconds by which Slurm may send ``--signal`` too early (sbatch(1))."""

REASONS = {
    "job-name": "what squeue shows",
    "account": "who pays",
    "nodes": "any number: what follows counts them",
    "gpus-per-node": "a rank each",
    "gres": "GPUs, a rank each",
    "time": "of one attempt",
    "requeue": "after a time limit, preemption, the loss of a node",
    "open-mode": "one log for all attempts",
}
"""Why each directive is there; an option of the site that is not listed is the site's."""


class Slurm:
    """Slurm 20.11 or later."""

    templates = "slurm"
    suffix = ".job"
    remarks: Literal["behind", "above"] = "behind"
    number = "SLURM_JOB_ID"
    mpirun = '$(compgen -e -P "-x " -X "SLURM_*")'
    """The whole environment, but for what Slurm tells each process of itself."""

    def usage(self, path: str) -> str:
        """Return how people submit the script."""
        return f"sbatch [options of sbatch] {path} [options of the trainer]"

    def directives(self, job: Job) -> List[Directive]:
        """Return the options by their own names, then what the site passes through."""
        reasons = {**REASONS, **_reasons(job)}
        options: Dict[str, Option] = {**_needs(job), **job.options}
        lines = [
            (f"#SBATCH {_option(name, value)}", reasons.get(name, "asked for by the site"))
            for name, value in options.items()
            if value is not False
        ]
        return lines + [(f"#SBATCH {one_line(text)}", "asked for by the site") for text in job.site.directives]

    def settings(self, job: Job) -> List[Setting]:
        """Return the number of ranks and the bound on requeues."""
        ranks = str(job.ranks_per_node)
        rows = [("USE_CONTAINER", str(int(job.site.container != "none")), "0: in VENV instead of IMAGE")]
        if job.gpus_per_node and not job.spec.ranks_per_node and job.spec.backend != "single":
            ranks = f"${{GPUS_PER_NODE:-${{SLURM_GPUS_ON_NODE:-{ranks}}}}}"
        rows.append(("RANKS_PER_NODE", ranks, "on each node; GPUS_PER_NODE says the same"))
        if job.site.resume == "requeue":
            rows.append(("MAX_REQUEUES", str(job.spec.max_requeues), "restarts, after which a time limit ends the job"))
        return rows

    def threads(self, job: Job) -> str:
        """Share the CPUs of the task among its ranks, rounded up to at least one."""
        if job.per_rank or job.spec.backend == "single":
            return "$cpus"
        return "$(((cpus + RANKS_PER_NODE - 1) / RANKS_PER_NODE))"

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Print the job's number alone."""
        return ["sbatch", "--parsable", path, *arguments]

    def continued(self) -> str:
        """Submit the copy in the run folder."""
        return '${given}sbatch --nodes=$nnodes $(printf "%q " "$RUN_DIR/job.sh" "$@")'


def _needs(job: Job) -> Dict[str, Option]:
    tasks = job.ranks_per_node if job.per_rank else 1
    hours, minutes = divmod(job.spec.minutes, 60)
    if job.spec.task in SKELETONS:
        return {
            "job-name": job.spec.name,
            "nodes": 1,
            "cpus-per-task": job.cpus_per_node,
            "time": f"{hours:02}:{minutes:02}:00",
        }
    return {
        "job-name": job.spec.name,
        "nodes": job.spec.nodes,
        "ntasks-per-node": tasks,
        "gpus-per-node": job.gpus_per_node or False,
        "cpus-per-task": job.cpus_per_node // tasks,
        "time": f"{hours:02}:{minutes:02}:00",
        "signal": f"B:USR1@{job.spec.save_seconds + EARLY}",
        "requeue": job.site.resume == "requeue",
        "open-mode": "append",
    }


def _reasons(job: Job) -> Dict[str, str]:
    partition = "where the GPUs are" if job.gpus_per_node else "no GPU is needed"
    if job.spec.task in SKELETONS:
        return {"nodes": "one is enough", "cpus-per-task": "to compile and to compress", "partition": partition}
    save = job.spec.save_seconds
    return {
        "partition": partition,
        "ntasks-per-node": "a task is a rank" if job.per_rank else "a task starts all ranks of its node",
        "cpus-per-task": "threads and data loaders of " + ("a rank" if job.per_rank else "all ranks of a node"),
        "signal": f"to this script (B:), {save} to {save + EARLY} s before the end: time to save",
    }


def _option(name: str, value: Option) -> str:
    """Return an option as sbatch reads it: split at blanks, with quotes and backslashes as in a shell."""
    text = one_line(f"--{name}" if value is True else f"--{name}={value}")
    return quote(text) if set(text) & set(" \t'\"\\#") else text

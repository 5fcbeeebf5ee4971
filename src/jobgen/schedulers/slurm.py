"""Slurm: sbatch, srun, scontrol."""

from __future__ import annotations

from typing import Dict, List, Literal, Tuple

from jobgen.model import BUILDS, EARLY_SECONDS, Job, Option
from jobgen.schedulers.base import Directive
from jobgen.shell import one_line, quote

REASONS = {
    "job-name": "what squeue shows",
    "account": "who pays",
    "nodes": "any number: the script counts them",
    "gpus-per-node": "a rank each",
    "gres": "GPUs, a rank each",
    "time": "of one attempt",
    "requeue": "lets it return to the queue: see above",
    "open-mode": "one log for all attempts",
}
"""Why each directive is there; an option of the site that is not listed is the site's."""


class Slurm:
    """Slurm 20.11 or later."""

    name = "slurm"
    suffix = ".job"
    submit = "sbatch"
    comments: Literal["behind", "above"] = "behind"

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

    def site_lines(self, job: Job) -> List[Tuple[str, str]]:
        """Return what starts processes, and by which options."""
        return [
            (f"launcher={job.steps}", "starts a process on each node"),
            ("srun_options=(--export=ALL --kill-on-bad-exit=1)", "of every step"),
            ("mpirun_options=()", ""),
        ][: 3 if "mpirun" in {job.launcher, job.steps} else 2]

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Print the job's number alone."""
        return ["sbatch", "--parsable", path, *arguments]

    def environment(self, arguments: List[str]) -> Dict[str, str]:  # noqa: ARG002 -- of the protocol
        """Return none: sbatch hands the arguments over."""
        return {}


def _needs(job: Job) -> Dict[str, Option]:
    tasks = job.ranks_per_node if job.per_rank else 1
    hours, minutes = divmod(job.spec.minutes, 60)
    if job.spec.task in BUILDS:
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
        "signal": f"B:USR1@{job.spec.save_seconds + EARLY_SECONDS}",
        "requeue": job.site.resume == "requeue",
        "open-mode": "append",
    }


def _reasons(job: Job) -> Dict[str, str]:
    partition = "where the GPUs are" if job.gpus_per_node else "no GPU is needed"
    if job.spec.task in BUILDS:
        return {"nodes": "one is enough", "cpus-per-task": "to compile and to compress", "partition": partition}
    save = job.spec.save_seconds + EARLY_SECONDS
    return {
        "partition": partition,
        "ntasks-per-node": "a task is a rank" if job.per_rank else "a task starts all ranks of its node",
        "cpus-per-task": "threads and data loaders of " + ("a rank" if job.per_rank else "all ranks of a node"),
        "signal": f"to this script (B:), {save} to {save + EARLY_SECONDS} s early: save",
    }


def _option(name: str, value: Option) -> str:
    """Return an option as sbatch reads it: split at blanks, with quotes and backslashes as in a shell."""
    text = one_line(f"--{name}" if value is True else f"--{name}={value}")
    return quote(text) if set(text) & set(" \t'\"\\#") else text

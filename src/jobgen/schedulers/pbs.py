"""OpenPBS and Torque: qsub, qstat, qrerun. The one module that names their variables.

Two things differ from Slurm throughout. A script has no arguments, so TRAIN_ARGS holds them. And nothing warns of the
time limit in a way that all sites share, so the script itself looks at the clock.
"""

from __future__ import annotations

from typing import Dict, List, Literal

from jobgen.model import Job, Option
from jobgen.schedulers import Directive, Setting
from jobgen.words import one_line

NAME = "names the log; one log of output and errors; again after the loss of a node"
NODES = "any number of nodes, each with GPUs, and cores for threads and data loaders, for the time of one attempt"
SITE = "asked for by the site"
REASONS = {"N": NAME, "j": NAME, "r": NAME, "select": NODES, "place": NODES, "nodes": NODES, "walltime": NODES}
"""Why each option is there; the others are the site's."""


class PBS:
    """OpenPBS, PBS Professional, or Torque, as the site says."""

    templates = "pbs"
    suffix = ".pbs"
    remarks: Literal["behind", "above"] = "above"
    number = "${job_id//[!0-9]/}"
    mpirun = '--hostfile "$PBS_NODEFILE" $(compgen -e -P "-x ")'
    """An Open MPI that was not built with PBS's own library knows nothing of the job."""

    def usage(self, path: str) -> str:
        """Return how people submit the script."""
        return f'qsub [-v SETTING=VALUE,...,TRAIN_ARGS="options of the trainer"] {path}'

    def directives(self, job: Job) -> List[Directive]:
        """Return the options by their own names, in one line what is there for one reason."""
        lines: Dict[str, str] = {}
        for name, value in {**_needs(job), **job.options}.items():
            if value is not False:
                why = REASONS.get(name, SITE)
                lines[why] = f"{lines.get(why, '#PBS')} {_option(name, value)}"
        rows = [(line, why) for why, line in lines.items()]
        return rows + [(f"#PBS {one_line(text)}", SITE) for text in job.site.directives]

    def settings(self, job: Job) -> List[Setting]:
        """Return the number of ranks, the arguments, and the bound on restarts."""
        ranks = f"${{GPUS_PER_NODE:-{job.ranks_per_node}}}"
        rows = [
            ("USE_CONTAINER", str(int(job.site.container != "none")), "0: in VENV instead of IMAGE"),
            ("RANKS_PER_NODE", ranks, "on each node; GPUS_PER_NODE says the same"),
            ("TRAIN_ARGS", "", "options of the trainer, quoted as in a shell"),
        ]
        if job.site.resume != "none":
            rows.append(("MAX_REQUEUES", str(job.spec.max_requeues), "restarts, after which a time limit ends the job"))
        return rows

    def threads(self, job: Job) -> str:  # noqa: ARG002 -- of the protocol
        """Share the cores of the node among its ranks, rounded up to at least one."""
        return "$(((cpus + RANKS_PER_NODE - 1) / RANKS_PER_NODE))"

    def submission(self, path: str, arguments: List[str]) -> List[str]:
        """Hand the whole environment over, as Slurm does."""
        from shlex import join  # noqa: PLC0415

        return ["qsub", "-V", *(["-v", f"TRAIN_ARGS={join(arguments)}"] if arguments else []), path]

    def continued(self) -> str:
        """Submit the copy in the run folder, and begin to count its restarts anew."""
        return '${given}RESTARTS=0 qsub -V $(printf %q "$RUN_DIR/job.sh")'


def _needs(job: Job) -> Dict[str, Option]:
    hours, minutes = divmod(job.spec.minutes, 60)
    name: Dict[str, Option] = {"N": job.spec.name, "j": "oe", "r": "n" if job.site.resume == "none" else "y"}
    return {**name, **_nodes(job), "walltime": f"{hours:02}:{minutes:02}:00"}


def _nodes(job: Job) -> Dict[str, Option]:
    nodes, cpus, ranks = job.spec.nodes, job.cpus_per_node, job.ranks_per_node
    if job.site.pbs == "torque":
        return {"nodes": f"{nodes}:ppn={cpus}" + (f":gpus={job.gpus_per_node}" if job.gpus_per_node else "")}
    gpus = f":ngpus={job.gpus_per_node}" if job.gpus_per_node else ""
    # without ompthreads each rank would be told to use all cores of its node (OMP_NUM_THREADS)
    chunk = f"{nodes}:ncpus={cpus}{gpus}:mpiprocs={ranks}:ompthreads={cpus // ranks}"
    return {"select": chunk, "place": "scatter"}


def _option(name: str, value: Option) -> str:
    """Return ``-q gpu`` for options of one letter, and ``-l walltime=01:00:00`` for resources."""
    if len(name) > 1:
        return one_line(f"-l {name}={value}")
    return one_line(f"-{name}" if value is True else f"-{name} {value}")

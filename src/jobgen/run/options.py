"""Command-line options of ``jobgen run``: the words of sbatch, torchrun and Conda."""

from __future__ import annotations

import argparse
from typing import Dict, List

from jobgen.base.errors import UsageError
from slipway.base.errors import did_you_mean

ABOUT = """Run a training program on the nodes of a cluster, or, at a site without a scheduler, on this machine.
Arguments of the program follow after --.

One process (rank) starts per GPU. To use several GPUs, a script must train with DistributedDataParallel or
another library for that; otherwise each rank trains a copy. To save at a stop and to continue, it must use
slipway.Session. `jobgen new` writes a script that does both."""
EPILOG = """examples:
  jobgen run my_train.py --nodes 2 --gpus-per-node 4 --time 4:00:00 -- --lr 0.1
  jobgen run configs/digits.toml --dry-run
  jobgen cancel                                   # save and stop
  jobgen run runs/my_train-4711 --time 8:00:00    # continue that run from its last checkpoint
  trainer report runs/my_train-4711               # its curves, as report.html"""
JOB = {
    "module", "nodes", "gpus_per_node", "gpu_type", "cpus_per_task", "time", "partition", "account", "qos", "mem",
    "name", "array", "data", "image", "venv", "conda", "backend", "spares", "site", "settings",
}  # fmt: skip
"""Options that are arguments of ``jobgen.Job``, with the same names; ``--env`` and the program are others."""


def add_run_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``jobgen run``, and its help."""
    command.usage = "%(prog)s [OPTION ...] (SCRIPT.py | -m MODULE | CONFIG.toml | RUN_FOLDER) [-- ARGUMENT ...]"
    command.description, command.epilog = ABOUT, EPILOG
    command.formatter_class = argparse.RawDescriptionHelpFormatter
    command.allow_abbrev = False  # --gpus would be taken for --gpus-per-node, and is another option of sbatch
    what = "a Python script (.py), a configuration of the trainer (.toml), or the folder of a run to continue"
    command.add_argument("program", metavar="SCRIPT", nargs="?", default="", help=what)
    command.add_argument("-m", dest="module", metavar="MODULE", default="", help="a Python module, as python -m takes")

    group = command.add_argument_group("resources")
    group.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: 1)")
    what = "GPUs of each node, one rank each (default: all of a node)"
    group.add_argument("--gpus-per-node", type=int, metavar="N", help=what)
    group.add_argument("--gpu-type", default="", metavar="TYPE", help="Slurm's name of the GPU type, such as a100")
    group.add_argument("--cpus-per-task", type=int, metavar="N", help="CPU cores of each rank")
    group.add_argument("--mem", default="", metavar="SIZE", help="memory of each node, such as 64G")
    what = "MM, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS (default: 1 hour)"
    group.add_argument("--time", default="", metavar="TIME", help=f"time limit: {what}")
    group.add_argument("--spares", type=int, metavar="N", help="spare nodes, which replace lost ones")

    group = command.add_argument_group("scheduler")
    group.add_argument("--partition", "--queue", default="", metavar="NAME", help="Slurm partition or PBS queue")
    group.add_argument("--account", default="", metavar="NAME", help="account or project to charge")
    group.add_argument("--qos", default="", metavar="NAME", help="Slurm quality of service")
    group.add_argument("--array", default="", metavar="RANGE", help="submit an array of jobs, such as 0-3")
    what = "name of the job, its log and its run folder (default: that of the script)"
    group.add_argument("--name", default="", metavar="NAME", help=what)

    group = command.add_argument_group("environment")
    group.add_argument("--image", default="", metavar="FILE", help="container image to run in")
    group.add_argument("--venv", default="", metavar="DIR", help="folder of a virtual or conda environment to run in")
    default = "the site's image if it exists, else the active environment if it has torch, else the site's environment"
    what = f"conda environment to run in (default: {default})"
    group.add_argument("--conda", default="", metavar="NAME", help=what)
    what = "ddp, horovod, or single for one process (default: ddp)"
    group.add_argument("--backend", default="", metavar="NAME", help=what)
    what = "variable for each rank; may be repeated"
    group.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help=what)
    what = "folder or archive of the data; scripts find its path in DATA"
    group.add_argument("--data", default="", metavar="PATH", help=what)

    group = command.add_argument_group("submission")
    what = "print the log until the job ends; Ctrl-C leaves the job alone"
    group.add_argument("--follow", action="store_true", help=what)
    what = "print settings, command and errors, and to a file or pipe the script; submit nothing"
    group.add_argument("--dry-run", action="store_true", help=what)
    what = "where to run: the site's name or file (default: your default site; the first run drafts it)"
    group.add_argument("--site", default="", metavar="SITE", help=what)
    what = "on the first run: save the drafted site as your default without a question"
    group.add_argument("--yes", action="store_true", help=what)
    what = "any other setting of spec or site; options.NAME=VALUE is an option of the scheduler"
    group.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE", help=what)


def hint_for(unknown: str) -> str:
    """Return the end of the error for an unknown argument of ``jobgen run``: what may have been meant."""
    if not unknown.startswith("--"):
        return "; arguments of the program follow after --"
    flags = [f"--{name.replace('_', '-')}" for name in JOB - {"module", "settings"}]
    near = did_you_mean(unknown.partition("=")[0], flags, cutoff=0.6)
    return f".{near} Arguments of the program follow after --; --set options.NAME=VALUE is any option of the scheduler"


def variables(words: List[str]) -> Dict[str, str]:
    """Return the values of ``--env``.

    Raises:
        UsageError: if one is not NAME=VALUE.
    """
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise UsageError("bad-flag-value", f"--env {word[:80]!r} is not NAME=VALUE.")
        found[name] = value
    return found

"""The header of a script: what an administrator reads first, and the command that generates the script."""

from __future__ import annotations

import re
import textwrap
from typing import Dict, List

from jobgen.model.job import BUILDS, Job
from jobgen.model.shell import COLUMNS, one_line, quote
from jobgen.render.launch import backends
from jobgen.render.template import fill
from jobgen.schedulers import TORCHRUN, Scheduler
from slipway.base.contract import VERSION

LABELS = 14
"""Width of the labels."""
BY_ITSELF = (
    "By this script ({command}), at most SLIPWAY_MAX_REQUEUES times: after a time limit, if the attempt has saved a "
    "further step{restarts}."
)
WITH_RESTARTS = (
    " or has just lost a node; and after a death that leaves too few nodes, if restarts are left and this script's own "
    "node still starts a process"
)
DOWNLOADS = ", and with SLIPWAY_VENV=local, unless SLIPWAY_WHEELHOUSE is set, on each node what containers/ pins"
BUILT = {
    "image": "The image SLIPWAY_IMAGE, of 0.5 GB (SLIPWAY_VARIANT=cpu), 3.1 GB (cuda) or 4.1 GB (cuda12), in place of "
    "an older one, and until it is whole a folder SLIPWAY_IMAGE.JOB.RANDOM beside it (mode 700), which stays "
    "after SIGKILL.",
    "venv": "An environment SLIPWAY_VENV.DATE-PID, of 5 to 7 GB with CUDA, to which the link SLIPWAY_VENV leads; older "
    "environments stay, and one that SIGKILL left unfinished; the log names them.",
}
"""What a job that builds leaves on the shared disk."""
ROOM = {"image": "up to 12 GB (cpu) or 40 GB", "venv": "among them pip's downloads"}
"""What it needs on the local one."""
WATCHING = "; for that watch_gpus.sh asks the driver{where} every 10 s how busy its GPUs are"
BY_HAND = "Never by this script: it prints the command that continues the run."


def about(job: Job) -> str:
    """Return the first lines: what the script does."""
    return "\n# ".join(textwrap.wrap(one_line(job.spec.about.replace("{launcher}", job.launcher)), COLUMNS - 2))


def contract(job: Job, scheduler: Scheduler, values: Dict[str, str]) -> str:
    """Return entries, each with its label, from a template with ``values`` and what differs between schedulers."""
    if job.spec.task in BUILDS:
        task = job.spec.task
        stop = f"{scheduler.contract.stop.split()[0]} JOB." if scheduler.has_queue else "Ctrl-C or SIGTERM."
        given = {"cancel": stop, "built": BUILT[task], "room": ROOM[task]}
        return _entries(fill("building_header.txt", {**values, **given}))
    differing = scheduler.contract._asdict() if scheduler.has_queue else {}
    torchrun = "torchrun" in values["launch"]
    patience = " (torchrun gives them 30 s)" if torchrun else ""
    sentences = {f"contract_{name}": text.replace(TORCHRUN, patience) for name, text in differing.items()}
    watching = WATCHING.format(where="" if scheduler.one_machine else " of each node")
    by_itself = scheduler.resumes.get(job.resume)
    restarts = WITH_RESTARTS if scheduler.has_queue else ""
    return _entries(
        fill(
            scheduler.header,
            {
                **values,
                **sentences,
                "watching": f"{watching if 'watch_gpus.sh' in values['launch'] else ''}.",
                "torchrun_code": " (torchrun's is 1 for any failure)" if torchrun else "",
                "ports": _ports(job, scheduler),
                "any_nodes": "one node" if job.spec.backend == "single" else "any number of nodes and GPUs",
                "mode": "750" if job.site.group_readable else "700",
                "downloads": DOWNLOADS if job.site.downloads else "",
                "arguments": " [options of the trainer]" if scheduler.takes_arguments else "",
                "requeue": BY_ITSELF.format(command=by_itself, restarts=restarts) if by_itself else BY_HAND,
            },
        ),
        without="Your script" if job.spec.task == "selftest" else "",
    )


def _ports(job: Job, scheduler: Scheduler) -> str:
    """Return on what a job's ranks listen."""
    backend, names = job.spec.backend, backends(job)
    if backend == "single":
        return "It listens on no port."
    if scheduler.one_machine:
        return "torchrun listens on a port of this machine (MASTER_PORT), on all interfaces, without authentication."
    on = "Its ranks listen on ports of the nodes without authentication, as PyTorch does: "
    if job.spec.mpi:
        return f"{on}on those that Open MPI {'and NCCL choose' if job.gpus_per_node else 'chooses'}."
    others = ["NCCL"] * bool(job.gpus_per_node) + ["Gloo"] + ["Horovod's rendezvous server"] * ("horovod" in names)
    listed = f"{', '.join(others[:-1])} and {others[-1]} choose" if len(others) > 1 else f"{others[0]} chooses"
    return f"{on}on MASTER_PORT of the first node (from 20000 on, or yours), and on others that {listed}."


def origin(job: Job) -> str:
    """Return the command that generates the script; ``origin_of`` reads it."""
    words = [quote(word) for word in job.origin]
    lines, line = [], f"# {'Generated:':<{LABELS}}"
    for word in words:
        if len(line) + len(word) > COLUMNS:
            lines.append(line.rstrip())
            line = f"# {'':<{LABELS}}    "
        line += f"{word} "
    made = f"By jobgen {VERSION}. Do not edit: change those two files, and run it again."
    return "\n".join([*lines, line.rstrip(), f"# {'':<{LABELS}}{made}"])


def origin_of(text: str) -> str:
    """Return the command in a script's header that generates it; "" if there is none."""
    found = re.search(r"(?m)^# Generated: +(.*(?:\n#                   .*)*)$", text)
    return " ".join(found[1].replace("\n#", " ").split()) if found else ""


def version_of(text: str) -> str:
    """Return the version of jobgen that a script's header names; "" if it names none."""
    found = re.search(r"(?m)^# +By jobgen (\S+)\. Do not edit:", text)
    return found[1] if found else ""


def _entries(text: str, *, without: str = "") -> str:
    """Return lines ``Label: text`` as a comment with a column of labels; those without a text go, and one by label."""
    lines: List[str] = []
    for entry in text.splitlines():
        label, _, words = entry.partition(": ")
        if label == without:
            continue
        lines += textwrap.wrap(
            words,
            COLUMNS,
            initial_indent=f"# {label + ':':<{LABELS}}",
            subsequent_indent=f"# {'':<{LABELS}}",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)

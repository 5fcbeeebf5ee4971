"""Header of a script: what it does, leaves behind and needs, and the command that generates it."""

from __future__ import annotations

import re
import textwrap
from itertools import zip_longest
from types import MappingProxyType
from typing import Dict, List, Mapping, Sequence

from jobgen.base.job import BUILDS, Job
from jobgen.base.shell import COLUMNS, quote, require_one_line
from jobgen.render.launch import backends
from jobgen.render.template import fill
from jobgen.runtimes import container_of
from jobgen.schedulers import TORCHRUN, Scheduler
from slipway.base.contract import VERSION

TERMS = (
    "Each start of the script and each restart of the ranks is an attempt, numbered from 1. RUN_DIR/verdict.N is rank "
    "0's one-line record of how attempt N ended, unless it crashed. slipway.Session is a Python class: a script that "
    "uses it saves, stops and resumes as the trainer does."
)
MEMORY = "0.4 GB per rank with configs/digits.toml on CPUs; it grows with the model, the data loaders and CUDA."
LABELS = 14
"""Width of the labels."""
RESTARTS = (
    "SLIPWAY_MAX_RESTARTS times per start of the job, on nodes that start a process in time (SLIPWAY_PROBE_SECONDS)"
)
REQUEUES = (
    (
        "a death leaves too few nodes",
        "this script: {command}",
        "SLIPWAY_MAX_REQUEUES times, if a restart remains and the first node starts a process",
    ),
    (
        "time limit",
        "this script: {command}",
        "SLIPWAY_MAX_REQUEUES times, if the attempt saved a later step or has just lost a node",
    ),
)
"""Table rows: event, command that requeues the job, limit."""
BY_ITSELF = (
    "By this script ({command}), at most SLIPWAY_MAX_REQUEUES times: after a time limit, if the attempt saved a later "
    "step."
)
BY_HAND = "Never by this script: it prints the command that continues the run."
NOTHING: Mapping[str, List[str]] = MappingProxyType({})
NEVER = ("time limit, or too few nodes", "nothing: the log shows the command that continues the run", "")
IMAGE = ", an image from a registry"
DOWNLOADS = "; on each node the pinned packages, if SLIPWAY_VENV=local without SLIPWAY_WHEELHOUSE"
BUILT = {
    "image": "The image SLIPWAY_IMAGE: 0.5 GB (SLIPWAY_VARIANT=cpu), 3.1 GB (cuda) or 4.1 GB (cuda12). It replaces an "
    "older one. During the build, a folder SLIPWAY_IMAGE.JOB.RANDOM beside it (mode 700), which stays after "
    "SIGKILL.",
    "venv": "An environment SLIPWAY_VENV.DATE-PID, of 5 to 7 GB with CUDA; SLIPWAY_VENV is a link to it. Older "
    "environments stay, also one that SIGKILL left unfinished; the log lists them.",
}
"""Files of a build job on the shared disk."""
ROOM = {"image": "up to 12 GB (cpu) or 40 GB", "venv": "including pip's downloads"}
"""Space that a build job needs on the local disk."""
WATCHING = " gpu_usage.py, which watch_gpus.sh starts on each node, queries the driver every 10 s (nice 19);"
WATCHING_HERE = "; gpu_usage.py queries the GPUs' driver every 10 s (nice 19)"
CLEAN_UP = ("EVENT", "RUN_DIR", "DISK OF FIRST NODE", "DISKS OF OTHER NODES")
RESTART = ("EVENT", "STARTED AGAIN BY", "AT MOST")
RISK = "Who can connect to them can run code as you (PyTorch's SECURITY.md): use a network that you trust."
WIDTHS = {"Clean-up": (31, 7, 21, 21), "Restart": (31, 21, 30)}
"""Column widths of the tables."""


def about(job: Job) -> str:
    """Return the first lines: the purpose of the script."""
    return "\n# ".join(textwrap.wrap(require_one_line(job.spec.about.replace("{launcher}", job.launcher)), COLUMNS - 2))


def entries(job: Job, scheduler: Scheduler, values: Dict[str, str]) -> str:
    """Return the entries of the header: a template filled with ``values`` and the scheduler's texts."""
    if job.spec.task in BUILDS:
        task = job.spec.task
        stop = f"{scheduler.header_text.stop.split()[0]} JOB." if scheduler.has_queue else "Ctrl-C or SIGTERM."
        given = {"cancel": stop, "built": BUILT[task], "room": ROOM[task]}
        return _entries(fill("building_header.txt", {**values, **given}))
    differing = scheduler.header_text.sentences() if scheduler.has_queue else {}
    torchrun = "torchrun" in values["launch"]
    patience = "; torchrun ends them after 30 s" if torchrun else ""
    sentences = {f"scheduler_{name}": text.replace(TORCHRUN, patience) for name, text in differing.items()}
    tables = _tables(job, scheduler) if scheduler.has_queue else {}
    runtime = container_of(job.site.container)
    return _entries(
        fill(
            scheduler.header,
            {
                **values,
                **sentences,
                "watching": WATCHING_HERE if "watch_gpus.sh" in values["launch"] else "",
                "processes": _processes(job, scheduler, launch=values["launch"]),
                "torchrun_code": " (torchrun's is 1 for any failure)" if torchrun else "",
                "ports": _ports(job, scheduler),
                "any_nodes": "one node" if job.spec.backend == "single" else "any number of nodes and GPUs",
                "mode": "750" if job.site.group_readable else "700",
                "downloads": (IMAGE if runtime.pulls_images else "") + (DOWNLOADS if job.site.downloads else ""),
                "arguments": " [options of the trainer]" if scheduler.takes_arguments else "",
                "requeue": _requeue(job, scheduler),
                "terms": TERMS,
                "memory": MEMORY,
                "runtime": runtime.needs.partition(" ")[0],
                "runtime_needs": runtime.needs,
            },
        ),
        tables,
        without="Your script" if job.spec.task == "selftest" else "",
    )


def _processes(job: Job, scheduler: Scheduler, *, launch: str) -> str:
    """Return the processes of a job besides the launcher and the ranks, as a sentence; "" without a queue."""
    if not scheduler.has_queue:
        return ""
    on_first = "copies of the ranks' standard error to the logs"
    if "srun" in (job.launcher, job.steps):
        on_first += ", a search of stderr.log every 5 s for a launcher that does not end"
    if "launch_horovod" in launch and not job.spec.mpi:
        on_first += ", with BACKEND=horovod its rendezvous server"
    return (
        f"Besides the launcher and the ranks:{WATCHING if 'watch_gpus.sh' in launch else ''}"
        f"{scheduler.header_text.processes} on the first node, {on_first}; SLIPWAY_NOTIFY. All end with the job."
    )


def _requeue(job: Job, scheduler: Scheduler) -> str:
    """Return the sentence about requeues in the header of a script that runs outside a queue."""
    command = scheduler.resumes.get(job.resume)
    return BY_ITSELF.format(command=command) if command else BY_HAND


def _tables(job: Job, scheduler: Scheduler) -> Dict[str, List[str]]:
    """Return the tables by label: what stays on which disk after an event, and what starts ranks or the job again."""
    command = scheduler.resumes.get(job.resume)
    requeues = [tuple(cell.format(command=command) for cell in row) for row in REQUEUES] if command else [NEVER]
    restarts = [
        (
            "a rank or launcher dies, or a node if the job survives it: ranks start again in this job",
            "this script",
            RESTARTS,
        ),
        *requeues,
    ]
    rows = {
        "Clean-up": [CLEAN_UP, *scheduler.header_text.clean_up],
        "Restart": [RESTART, *restarts, *scheduler.header_text.restarts],
    }
    return {label: _table(rows[label], WIDTHS[label]) for label in rows}


def _table(rows: Sequence[Sequence[str]], widths: Sequence[int]) -> List[str]:
    """Return the rows with their cells wrapped to ``widths`` columns."""
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths)]
        lines += [
            " ".join(f"{part:<{width}}" for part, width in zip(parts, widths)).rstrip()
            for parts in zip_longest(*cells, fillvalue="")
        ]
    return lines


def _ports(job: Job, scheduler: Scheduler) -> str:
    """Return the ports on which a job's ranks listen, as a sentence."""
    backend, names = job.spec.backend, backends(job)
    if backend == "single":
        return "It listens on no port."
    if scheduler.one_machine:
        return "torchrun listens on a port of this machine (MASTER_PORT), on all interfaces, without authentication."
    on = "TCP without authentication, as PyTorch listens: "
    if job.spec.mpi:
        return f"{on}ports that Open MPI {'and NCCL choose' if job.gpus_per_node else 'chooses'}. {RISK}"
    others = ["NCCL"] * bool(job.gpus_per_node) + ["Gloo"] + ["Horovod's rendezvous server"] * ("horovod" in names)
    listed = f"{', '.join(others[:-1])} and {others[-1]} choose" if len(others) > 1 else f"{others[0]} chooses"
    return (
        f"{on}MASTER_PORT of the first node, on all interfaces (the first free port from 20000 + job number modulo "
        f"10000 on, or yours), where a test server listens during the preflight; and ports that {listed}. {RISK}"
    )


def origin(job: Job) -> str:
    """Return the command that generates the script; ``origin_of`` reads it."""
    words = [quote(word) for word in job.origin]
    lines, line = [], f"# {'Generated:':<{LABELS}}"
    for word in words:
        if len(line) + len(word) > COLUMNS:
            lines.append(line.rstrip())
            line = f"# {'':<{LABELS}}    "
        line += f"{word} "
    made = f"By jobgen {VERSION}. Do not edit: change those two files and run the command again."
    return "\n".join([*lines, line.rstrip(), f"# {'':<{LABELS}}{made}"])


def origin_of(text: str) -> str:
    """Return the command in a script's header that generates it; "" if there is none."""
    found = re.search(r"(?m)^# Generated: +(.*(?:\n#                   .*)*)$", text)
    return " ".join(found[1].replace("\n#", " ").split()) if found else ""


def version_of(text: str) -> str:
    """Return the version of jobgen in a script's header; "" if there is none."""
    found = re.search(r"(?m)^# +By jobgen (\S+)\. Do not edit:", text)
    return found[1] if found else ""


def _entries(text: str, tables: Mapping[str, List[str]] = NOTHING, *, without: str = "") -> str:
    """Return lines ``Label: text`` as a comment with a column of labels.

    ``tables`` are lines that take the place of an entry's text. Entries without a text, and the one with the label
    ``without``, are left out.
    """
    lines: List[str] = []
    for entry in text.splitlines():
        label, _, words = entry.partition(": ")
        if label == without:
            continue
        if label in tables:
            labels = [f"{label}:", *[""] * (len(tables[label]) - 1)]
            lines += [f"# {start:<{LABELS}}{row}" for start, row in zip(labels, tables[label])]
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

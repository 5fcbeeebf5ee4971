"""Outcomes of kills during a run, and a table of them.

PYTHONPATH=tests:tests/cluster:src python tests/cluster/recovery.py REPORT...  # print the table of these files
"""

import json
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from clusters import Cluster, until

KILLED = ("rank", "launcher", "apptainer", "mpirun", "mom", "slurmd", "node", "network", "batch host")
RANK = ("--oldest", "--full", "^[^ ]*python[^ ]* -u -m trainer ")
"""The pattern of a rank of the trainer under torchrun, the first one on a node."""
MOMENTS = ("start", "training", "evaluation", "save", "restart")


@dataclass(frozen=True)
class Kill:
    """A kill: its target, moment and node."""

    what: str
    """One of KILLED."""
    moment: str
    """One of MOMENTS."""
    place: float
    """0 to 1: selects the node among the possible ones; of two, 0 or 1."""
    delay: float
    """0 to 1: position within the moment."""


@dataclass
class Outcome:
    """The outcome of a kill."""

    job: int
    kill: Kill
    container: bool = False
    slurmd_timeout: int = 0
    """SlurmdTimeout of the cluster, in seconds."""
    noticed: float | None = None
    """Seconds until the job log or Slurm reported it; None: never."""
    trains_again: float | None = None
    """Seconds until the next attempt finished a step; None: the attempt continued, or no attempt did."""
    how: str = ""
    """restart, requeue, or "went on" if no action was needed."""
    failure: str = ""
    """Empty if the run ended with the weights of an undisturbed run and left no processes or files."""


def strike(cluster: Cluster, what: str, node: str, *pattern: str) -> None:
    """Kill ``what`` (of KILLED) on ``node``; job processes by a pkill ``pattern`` that does not match pkill itself."""
    match what:
        case "node" | "batch host":
            cluster.control("kill", node)
        case "network":
            cluster.control("cut", node)
        case "slurmd" | "mom":
            cluster.control("on", node, "pkill", "-KILL", "--exact", {"mom": "pbs_mom"}.get(what, what))
        case _:  # it may not have started yet
            kill = ("on", node, "sh", "-c", 'pkill --echo -KILL "$@" || :', "sh", *pattern)
            assert until(lambda: bool(cluster.control(*kill))) is not None, f"no {what} on {node}"


def repair(cluster: Cluster, what: str, node: str) -> None:
    """Restore what ``strike`` has killed on ``node``, like an administrator."""
    if what == "network":
        cluster.control("reconnect", node)
        # So that it registers at once: Slurm rarely polls a node that is down, with SlurmdTimeout=300 every 33 minutes.
        cluster.control("on", node, "sh", "-c", "pkill -HUP --exact slurmd || :")
    else:
        cluster.control("kill", node)
        cluster.control("boot", node)


def trains(out: Path, attempt: int) -> bool:
    """Return whether that attempt of the run in ``out``, or a later one, has logged a new step.

    An attempt notes in goodput.jsonl that it begins once it has cut the metrics that it repeats.
    """
    try:
        lines = [json.loads(line) for line in (out / "goodput.jsonl").read_bytes().splitlines() if line.endswith(b"}")]
    except FileNotFoundError:
        return False
    begun = [line["step"] for line in lines if "step" in line and line["attempt"] >= attempt]
    return bool(begun) and last_step(out) > begun[0]


def last_step(out: Path) -> int:
    """Return the last step of the metrics."""
    try:
        lines = (out / "metrics.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in lines[-3:] if line.endswith(b"}")), default=0)


def append(report: Path, outcomes: list[Outcome]) -> None:
    """Add a line for each outcome."""
    with report.open("a", encoding="utf-8") as file:
        for outcome in outcomes:
            file.write(json.dumps(asdict(outcome)) + "\n")


def table(rows: list[dict]) -> str:
    """Return a Markdown table by target and by moment."""
    lines = [
        "| killed | times | recovered | by restart, requeue, went on | seconds to notice | to train again |",
        "|---|---|---|---|---|---|",
    ]
    groups = [(what, "what") for what in sorted({row["kill"]["what"] for row in rows}, key=KILLED.index)]
    moments = [moment for moment in MOMENTS if any(row["kill"]["moment"] == moment for row in rows)]
    groups += [(moment, "moment") for moment in moments if len(moments) > 1]
    for name, field in groups:
        some = [row for row in rows if row["kill"][field] == name]
        hows = [sum(row["how"] == how for row in some) for how in ("restart", "requeue", "went on")]
        lines.append(
            f"| {'during ' * (field == 'moment')}{name} | {len(some)} | {sum(not row['failure'] for row in some)} "
            f"| {', '.join(map(str, hows))} | {spread(some, 'noticed')} | {spread(some, 'trains_again')} |"
        )
    return "\n".join(lines)


def spread(rows: list[dict], field: str) -> str:
    """Return median, 95th percentile and maximum."""
    found = sorted(row[field] for row in rows if row[field] is not None)
    if not found:
        return "none"
    return f"{statistics.median(found):.0f}, {found[int(0.95 * (len(found) - 1) + 0.5)]:.0f}, {found[-1]:.0f}"


if __name__ == "__main__":
    found = [json.loads(line) for path in sys.argv[1:] for line in Path(path).read_text().splitlines()]
    print(table(found))
    for row in found:
        if row["failure"]:
            print(f"job {row['job']}: {row['kill']['what']} during {row['kill']['moment']}: {row['failure']}")

"""What a test sees of a run that was disturbed: whether it trains again, and what is left of it."""

import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from clusters import Cluster
from support import status

LEFT = re.compile(r"trainer|slow_steps|torchrun|ft_launcher|prterun|prted|mpirun|guard\.sh|slurm_script|[Aa]pptainer")
"""Of the command line of a process that belongs to a job."""


def until(condition: Callable[[], bool], *, limit: float = 240) -> float | None:
    """Return the seconds until ``condition``; None where it does not come within ``limit`` seconds."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() > began + limit:
            return None
        time.sleep(0.1)
    return time.monotonic() - began


def trains(out: Path, attempt: int) -> bool:
    """Whether that attempt of the run in ``out``, or a later one, has logged a step of its own."""
    try:
        now = status(out)
    except (FileNotFoundError, json.JSONDecodeError):
        return False
    return now["attempt"] >= attempt and last_step(out) > now["start_step"]


def last_step(out: Path) -> int:
    """Return the last step of the metrics."""
    try:
        lines = (out / "metrics.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return 0
    return max((json.loads(line)["step"] for line in lines[-3:] if line.endswith(b"}")), default=0)


def left_over(cluster: Cluster, nodes: Iterable[str], *, limit: float = 120) -> list[str]:
    """Return what a job has left on ``nodes``, which had so many seconds to clean up."""
    nodes = list(nodes)

    def processes() -> list[str]:
        lines = [
            (node, line) for node in nodes for line in cluster.control("on", node, "ps", "-eo", "args").splitlines()
        ]
        return [f"{node}: {line[:100]}" for node, line in lines if LEFT.search(line)]

    until(lambda: not processes(), limit=limit)
    return processes()

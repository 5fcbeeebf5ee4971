"""The points of a study: which allocations a grid asks for."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, NamedTuple, Tuple

from jobgen.base.errors import JobgenError

AXES = ("nodes", "ranks", "cpus", "backend", "container")


class Point(NamedTuple):
    """An allocation."""

    name: str
    """Of its run folder in that of the study: nodes1-ranks2-cpus4, and what else the grid varies."""
    nodes: int
    ranks: int
    """Over all nodes."""
    cpus: int
    """Cores of each rank."""
    backend: str
    """"": that of the spec."""
    container: str
    """USE_CONTAINER: 0, 1, or "" for that of the site."""

    @property
    def ranks_per_node(self) -> int:
        """Return the ranks of each node."""
        return self.ranks // self.nodes


class Axes(NamedTuple):
    """What a grid varies."""

    ranks: List[int]
    cpus: List[int]
    nodes: List[int]
    """[]: as few as the ranks fit on."""
    backends: List[str]
    containers: List[str]


def points_of(axes: Axes, *, most_per_node: int) -> Tuple[List[Point], List[str]]:
    """Return the points of the grid, and in words what was left out of it, and what takes many nodes.

    Args:
        axes: of the grid.
        most_per_node: ranks that a node takes.
    """
    found: List[Point] = []
    remarks: List[str] = []
    several = itertools.product(axes.backends or [""], axes.containers or [""])
    for backend, container in several:
        for ranks, cpus, given in itertools.product(axes.ranks, axes.cpus, axes.nodes or [0]):
            nodes = given or _fewest_nodes(ranks, most_per_node)
            on_nodes = f"{ranks} rank(s) on {nodes or 'any number of'} node(s)"
            if nodes == 0 or ranks % nodes:
                remarks.append(f"left out: {on_nodes}: not as many on each")
                continue
            if ranks // nodes > most_per_node:
                remarks.append(f"left out: {on_nodes}: a node takes {most_per_node}")
                continue
            if not given and (nodes - 1) * most_per_node >= ranks:
                remarks.append(
                    f"{on_nodes}, {ranks // nodes} on each, though {most_per_node} fit: fewer do not divide them"
                )
            words = [f"nodes{nodes}", f"ranks{ranks}", f"cpus{cpus}", *filter(None, [backend])]
            if container:
                words.append("image" if container == "1" else "venv")
            found.append(Point("-".join(words), nodes, ranks, cpus, backend, container))
    return found, list(dict.fromkeys(remarks))


def _fewest_nodes(ranks: int, most_per_node: int) -> int:
    """Return on how few nodes as many ranks each have room; 0 if on none."""
    return next((nodes for nodes in range(1, ranks + 1) if not ranks % nodes and ranks // nodes <= most_per_node), 0)


def settings_of(point: Point, *, gpus: bool, devices_per_rank: int) -> List[str]:
    """Return what ``jobgen`` is told by --set for ``point``: a job of just its nodes, ranks, GPUs and cores."""
    settings = [f"nodes={point.nodes}", f"cpus_per_gpu={point.cpus}"]
    if gpus:
        return [*settings, f"gpus_per_node={point.ranks_per_node * devices_per_rank}"]
    return [*settings, f"ranks_per_node={point.ranks_per_node}"]


def weak_batch(config: Dict[str, Any], schema: Dict[str, Any]) -> int:
    """Return the samples of a step on each rank of a weak study: what ``config`` says for one rank.

    Raises:
        JobgenError: if that is no number.
    """
    train = config.get("train", {})
    default = schema["properties"]["train"]["properties"]["batch_size"]["default"]
    found = train.get("batch_size_per_rank") or train.get("batch_size", default)
    if not isinstance(found, int) or found < 1:
        raise JobgenError(
            "bad-value", f"the batch size of the configuration is {found!r}: it must be a whole number, at least 1."
        )
    return found

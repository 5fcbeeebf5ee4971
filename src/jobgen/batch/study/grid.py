"""Grid of allocations of a study, and the settings of its points."""

from __future__ import annotations

import itertools
from typing import Any, Dict, List, NamedTuple, Tuple

from jobgen.base.errors import JobgenError


class Point(NamedTuple):
    """One allocation of a study."""

    name: str
    """Name of the point and its run folder: nodes1-ranks2-cpus4, plus backend and container if the grid varies them."""
    nodes: int
    ranks: int
    """Ranks over all nodes."""
    cpus: int
    """Cores of each rank."""
    backend: str
    """"": the spec's backend."""
    container: str
    """USE_CONTAINER: 0, 1, or "" for the site's default."""

    @property
    def ranks_per_node(self) -> int:
        """Number of ranks on each node."""
        return self.ranks // self.nodes


class Axes(NamedTuple):
    """The values that a grid combines."""

    ranks: List[int]
    cpus: List[int]
    nodes: List[int]
    """[]: the fewest nodes on which the ranks fit."""
    backends: List[str]
    containers: List[str]


def points_of(axes: Axes, *, max_ranks_per_node: int) -> Tuple[List[Point], List[str]]:
    """Return the points of the grid, and remarks on omitted points and points with more nodes than necessary.

    Args:
        axes: values that the grid combines.
        max_ranks_per_node: maximum ranks per node.
    """
    found: List[Point] = []
    remarks: List[str] = []
    several = itertools.product(axes.backends or [""], axes.containers or [""])
    for backend, container in several:
        for ranks, cpus, given in itertools.product(axes.ranks, axes.cpus, axes.nodes or [0]):
            nodes = given or _fewest_nodes(ranks, max_ranks_per_node)
            on_nodes = f"{ranks} rank(s) on {nodes or 'any number of'} node(s)"
            if nodes == 0 or ranks % nodes:
                remarks.append(f"omitted: {on_nodes}: the ranks do not divide evenly")
                continue
            if ranks // nodes > max_ranks_per_node:
                remarks.append(f"omitted: {on_nodes}: a node takes at most {max_ranks_per_node}")
                continue
            if not given and (nodes - 1) * max_ranks_per_node >= ranks:
                remarks.append(
                    f"{on_nodes}, {ranks // nodes} on each although {max_ranks_per_node} fit: "
                    "fewer nodes do not divide them"
                )
            words = [f"nodes{nodes}", f"ranks{ranks}", f"cpus{cpus}", *filter(None, [backend])]
            if container:
                words.append("image" if container == "1" else "venv")
            found.append(Point("-".join(words), nodes, ranks, cpus, backend, container))
    return found, list(dict.fromkeys(remarks))


def _fewest_nodes(ranks: int, max_ranks_per_node: int) -> int:
    """Return the smallest number of nodes with equally many ranks each, at most ``max_ranks_per_node``; 0 if none."""
    return next(
        (nodes for nodes in range(1, ranks + 1) if not ranks % nodes and ranks // nodes <= max_ranks_per_node), 0
    )


def settings_of(point: Point, *, gpus: bool, devices_per_rank: int) -> List[str]:
    """Return the ``--set`` settings of a job with exactly the nodes, ranks, GPUs and cores of ``point``."""
    settings = [f"nodes={point.nodes}", f"cpus_per_gpu={point.cpus}"]
    if gpus:
        return [*settings, f"gpus_per_node={point.ranks_per_node * devices_per_rank}"]
    return [*settings, f"ranks_per_node={point.ranks_per_node}"]


def weak_scaling_batch(config: Dict[str, Any], schema: Dict[str, Any]) -> int:
    """Return the samples per step on each rank of a weak-scaling study: the batch size of ``config`` for one rank.

    Raises:
        JobgenError: if the batch size is not a positive whole number.
    """
    train = config.get("train", {})
    default = schema["properties"]["train"]["properties"]["batch_size"]["default"]
    found = train.get("batch_size_per_rank") or train.get("batch_size", default)
    if not isinstance(found, int) or found < 1:
        raise JobgenError(
            "bad-value", f"the configuration's batch size is {found!r}: it must be a whole number, at least 1."
        )
    return found

"""Choice of the PBS queues for jobs with and without GPUs."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from jobgen.detect.parsing import is_plain, number
from jobgen.detect.pbs.facts import Attributes, Host, PbsFacts
from jobgen.detect.slurm.facts import FOREVER

SHORT = 4 * 3600
"""Seconds; queues with a smaller time limit are for tests and interactive work."""
LOW = r"preempt|free|scaveng|backfill|low|idle"
"""Pattern in names of queues whose jobs are preempted: PBS shows users no attribute for that."""


class UsableQueue(NamedTuple):
    """A queue to which the user can submit jobs."""

    name: str
    attributes: Attributes
    hosts: List[Host]
    """Hosts on which jobs of this queue, or of queues that it routes to, may run."""
    seconds: int
    wants_gpus: bool
    """Whether the queue is for GPU jobs, by a minimum or default of GPUs, its name, or its own nodes."""
    takes_gpus: bool
    most_gpus: int
    """Maximum GPUs of a job; 0: no limit."""
    takes_others: bool
    """Whether jobs without GPUs may run in this queue."""
    is_default: bool


def queues_of(pbs: PbsFacts) -> List[UsableQueue]:
    """Return the queues to which the user may submit."""
    names = [name for name, attributes in pbs.queues.items() if is_plain(name) and _is_open(attributes, pbs)]
    return [_queue(name, pbs) for name in names]


def best(queues: List[UsableQueue], *, gpus: bool) -> Optional[UsableQueue]:
    """Return the best queue for jobs with or without GPUs; None if there is none."""

    def rank(queue: UsableQueue) -> Tuple[int, ...]:
        of_gpus = sum(host.gpus if gpus else 1 for host in queue.hosts if host.is_up)
        apart = queue.wants_gpus if gpus else not queue.wants_gpus
        low = bool(re.search(LOW, queue.name.lower()))
        return (*map(int, (apart, queue.is_default, queue.seconds >= SHORT, not low)), of_gpus)

    possible = [queue for queue in queues if (queue.takes_gpus if gpus else queue.takes_others)]
    return max(possible, key=rank) if possible else None


def _queue(name: str, pbs: PbsFacts) -> UsableQueue:
    attributes = pbs.queues[name]
    targets = [part.partition("@")[0].strip() for part in attributes.get("route_destinations", "").split(",")]
    leaves = [pbs.queues[target] for target in targets if target in pbs.queues] or [attributes]
    hosts = list({host.name: host for leaf in leaves for host in _hosts_of(leaf, name, targets, pbs)}.values())
    own = any(host.values.get("queue", frozenset()) & {name, *targets} for host in hosts)
    having = [host for host in hosts if host.gpus]
    named = bool(re.search(r"gpu|cuda|dgx|[vah]100|volta", name.lower()))
    said = any(_gpus(leaf, kind) for leaf in leaves for kind in ("resources_min", "resources_default", "default_chunk"))
    bound = own or any(_chunk(leaf) for leaf in leaves)
    return UsableQueue(
        name=name,
        attributes=attributes,
        hosts=having or hosts,
        seconds=max(_seconds(leaf.get("resources_max.walltime", "")) for leaf in leaves),
        wants_gpus=said or named or (bound and bool(hosts) and len(having) == len(hosts) < len(pbs.hosts)),
        takes_gpus=bool(having) and any(_gpus(leaf, "resources_max", missing=1) for leaf in leaves),
        most_gpus=max(_gpus(leaf, "resources_max") for leaf in leaves),
        takes_others=not all(_gpus(leaf, "resources_min") for leaf in leaves),
        is_default=pbs.server.get("default_queue") == name,
    )


def _hosts_of(leaf: Attributes, name: str, targets: List[str], pbs: PbsFacts) -> List[Host]:
    """Return the hosts of an execution queue: those bound to it, and shared ones with the resources of its chunks."""
    chunk, found = _chunk(leaf), []
    for host in pbs.hosts:
        queue = host.values.get("queue")
        if queue and not queue & {name, *targets}:
            continue
        if all(value in host.values.get(key, frozenset()) for key, value in chunk.items()):
            found.append(host)
    return found


def _chunk(leaf: Attributes) -> Dict[str, str]:
    """Return the non-numeric default resources of a queue's chunks, such as Qlist, queue_list, gputype."""
    pairs = [(key.partition("default_chunk.")[2], value) for key, value in leaf.items()]
    return {key: value for key, value in pairs if key and not re.fullmatch(r"[0-9.]+([kmgt]?b)?", value)}


def _gpus(leaf: Attributes, kind: str, *, missing: int = 0) -> int:
    text = leaf.get(f"{kind}.ngpus", leaf.get(f"{kind}.gpus"))
    return missing if text is None else number(text)


def _seconds(limit: str) -> int:
    parts = [number(part) for part in limit.split(":")] if limit else []
    return sum(part * unit for part, unit in zip(reversed(parts), (1, 60, 3600, 86400))) if parts else FOREVER


def _is_open(attributes: Attributes, pbs: PbsFacts) -> bool:
    """Return whether a queue accepts the user's jobs."""
    if "False" in {attributes.get("enabled"), attributes.get("started")} or attributes.get("from_route_only") == "True":
        return False
    for kind, mine in (("group", pbs.groups), ("user", frozenset({pbs.user}))):
        words = [word.strip().partition("@")[0] for word in attributes.get(f"acl_{kind}s", "").split(",")]
        denied = {word[1:] for word in words if word.startswith("-")}  # the signs: pbs_queue_attributes(7B)
        allowed = {word.lstrip("+") for word in words} - {f"-{word}" for word in denied}
        if attributes.get(f"acl_{kind}_enable") == "True" and mine and (not mine & allowed or mine & denied):
            return False
    return True

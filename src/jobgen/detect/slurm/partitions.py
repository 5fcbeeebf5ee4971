"""Choice of the Slurm partitions for jobs with and without GPUs."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, NamedTuple, Optional, Tuple

from jobgen.detect.gpus import Gpus
from jobgen.detect.slurm.facts import Nodes, SlurmFacts

SHORT = 240
"""Minutes; partitions with a smaller time limit are for tests and interactive work."""


class Partition(NamedTuple):
    """A partition and its nodes."""

    name: str
    nodes: List[Nodes]
    facts: Dict[str, str]
    """``scontrol show partition``."""
    is_allowed: bool
    """Whether no known rule excludes the user."""
    is_preempted: bool
    """Whether jobs of other partitions can preempt its jobs."""

    @property
    def is_default(self) -> bool:
        """Whether jobs without a partition go to this one."""
        return self.nodes[0].is_default

    @property
    def is_of_gpus(self) -> bool:
        """Whether at least half of its nodes have GPUs."""
        return 2 * sum(nodes.size for nodes in self.gpu_nodes) >= sum(nodes.size for nodes in self.nodes)

    @property
    def gpu_nodes(self) -> List[Nodes]:
        """Groups of its nodes that have GPUs."""
        return [nodes for nodes in self.nodes if nodes.gpus]

    def total(self, *, gpus: bool) -> int:
        """Return its number of usable GPUs, or, without ``gpus``, of usable nodes without GPUs."""
        if gpus:
            return sum(nodes.size * sum(part.per_node for part in nodes.gpus) for nodes in self.nodes if nodes.is_up)
        return sum(nodes.size for nodes in self.nodes if nodes.is_up and not nodes.gpus)


class Kind(NamedTuple):
    """The GPUs that a job requests, and the nodes of a partition that have them."""

    gpus: Gpus
    """Type, and the smallest number on one of these nodes."""
    nodes: List[Nodes]
    others: List[str]
    """Other types of GPUs in the partition."""

    def shares(self, nodes: Nodes) -> int:
        """Return the number of GPUs that share a node: those of the type, or all if they are slices."""
        return sum(part.per_node for part in nodes.gpus if self.gpus.is_slice or part.type == self.gpus.type)


def partitions_of(slurm: SlurmFacts) -> List[Partition]:
    """Return all partitions, in sinfo's order."""
    names = list(dict.fromkeys(nodes.partition for nodes in slurm.nodes))
    highest = max((_tier(facts) for facts in slurm.partitions.values()), default=0)
    found: List[Partition] = []
    for name in names:
        facts = slurm.partitions.get(name, {})
        nodes = [row for row in slurm.nodes if row.partition == name]
        preempted = facts.get("PreemptMode", "OFF").split(",")[-1] not in {"OFF", "N/A", ""}
        found.append(
            Partition(
                name, nodes, facts, _is_allowed(name, facts, slurm), preempted and 0 < _tier(facts) < highest
            )
        )  # fmt: skip
    return found


def best(partitions: List[Partition], *, gpus: bool) -> Optional[Partition]:
    """Return the best partition for jobs with or without GPUs; None if there is none.

    Criteria in order: whole GPUs instead of slices; no mix of nodes with and without GPUs; the default partition if its
    time limit allows work; any such time limit; no preemption; the default partition; the most GPUs or nodes.
    """

    def rank(partition: Partition) -> Tuple[int, ...]:
        fits = any(not part.is_slice for nodes in partition.gpu_nodes for part in nodes.gpus) if gpus else True
        alone = partition.is_of_gpus if gpus else not partition.gpu_nodes
        long = partition.nodes[0].minutes >= SHORT
        order = (fits, alone, partition.is_default and long, long, not partition.is_preempted, partition.is_default)
        return (*map(int, order), partition.total(gpus=gpus))

    possible = [partition for partition in partitions if partition.is_allowed and partition.total(gpus=gpus)]
    if not possible:  # all nodes are down
        rows = [(partition, partition.gpu_nodes if gpus else partition.nodes) for partition in partitions]
        possible = [partition for partition, nodes in rows if partition.is_allowed and nodes and gpus]
    return max(possible, key=rank) if possible else None


def kind_of(partition: Partition) -> Kind:
    """Return the most common type of a partition's GPUs, whole GPUs before slices; the partition must have GPUs."""
    totals: Dict[Tuple[bool, str], int] = {}
    for nodes in partition.gpu_nodes:
        for gpus in nodes.gpus:
            key = (not gpus.is_slice, gpus.type)
            totals[key] = totals.get(key, 0) + nodes.size * gpus.per_node
    chosen = max(totals, key=lambda key: (key[0], totals[key]))[1]
    having = [(nodes, gpus) for nodes in partition.gpu_nodes for gpus in nodes.gpus if gpus.type == chosen]
    having = [pair for pair in having if pair[0].is_up] or having
    fewest = min(gpus.per_node for _, gpus in having)
    others = sorted(kind for _, kind in totals if kind != chosen)
    return Kind(Gpus(chosen, fewest), [nodes for nodes, _ in having], others)


def accounts_of(slurm: SlurmFacts, partition: Optional[Partition]) -> List[str]:
    """Return the user's accounts, or those of them that ``partition`` accepts."""
    name, facts = (partition.name, partition.facts) if partition else ("", {})
    every = [row.account for row in slurm.associations or [] if row.partition in {"", name} or not name]
    allowed, denied = _names(facts.get("AllowAccounts")), _names(facts.get("DenyAccounts"))
    kept = [text for text in every if (allowed is None or text in allowed) and text not in (denied or ())]
    return list(dict.fromkeys(kept))


def qos_of(partition: Partition) -> Optional[FrozenSet[str]]:
    """Return the QOS that a partition accepts; None: any."""
    return _names(partition.facts.get("AllowQos"))


def _is_allowed(name: str, facts: Dict[str, str], slurm: SlurmFacts) -> bool:
    """Return whether a partition accepts the user's jobs, by its state, groups, accounts and QOS."""
    if facts.get("State", "UP") not in {"UP", ""} or facts.get("RootOnly") == "YES":
        return False
    groups = _names(facts.get("AllowGroups"))
    if groups is not None and slurm.groups and not groups & slurm.groups:
        return False
    if not slurm.associations:
        return True
    bare = Partition(name, [], facts, is_allowed=True, is_preempted=False)
    allowed, mine = qos_of(bare), {qos for row in slurm.associations for qos in row.qos}
    return bool(accounts_of(slurm, bare)) and (allowed is None or not mine or bool(allowed & mine))


def _names(text: Optional[str]) -> Optional[FrozenSet[str]]:
    """Parse a list in scontrol's output; return None for ALL and for a missing value."""
    return None if text in {None, "", "ALL", "N/A"} else frozenset((text or "").split(","))


def _tier(facts: Dict[str, str]) -> int:
    text = facts.get("PriorityTier", "")
    return int(text) if text.isdecimal() else 0

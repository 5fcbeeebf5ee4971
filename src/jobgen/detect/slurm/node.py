"""Detection of a Slurm node's resources for jobs: cores, memory, local disk."""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Tuple

from jobgen.detect.draft import Draft
from jobgen.detect.parsing import listed, number
from jobgen.detect.slurm.facts import Nodes

NODE = "scontrol show node"
MEMORY_DEFAULTS = ("DefMemPerCPU", "DefMemPerNode")
GIB = 1024
"""MiB of a GiB."""


class Node(NamedTuple):
    """The node whose resources set the site's fields."""

    nodes: Nodes
    """Its row of sinfo."""
    facts: Dict[str, str]
    """``scontrol show node``; empty if the command failed."""
    partition: Dict[str, str]
    """``scontrol show partition``."""

    @property
    def source(self) -> str:
        """Command that reported its resources."""
        return f"{NODE} {self.nodes.first}" if self.facts else "sinfo"


def draft_cores(draft: Draft, node: Node, *, shares: int) -> None:
    """Set ``cpus_per_gpu``: the node's cores for jobs, divided by ``shares``, one for each GPU."""
    nodes = node.nodes
    allocatable = re.search(r"(?:^|,)cpu=([0-9]+)", node.facts.get("CfgTRES", ""))
    cpus = number(node.facts.get("CPUEfctv", "")) or (int(allocatable[1]) if allocatable else nodes.cpus)
    threads = max(1, nodes.cpus // nodes.cores)
    source = f"{node.source}: {cpus} CPUs"
    most = number(node.partition.get("MaxCPUsPerNode", ""))
    if 0 < most < cpus:
        source += f", its partition allows {most} (MaxCPUsPerNode)"
        cpus = most
    source += f", {threads} per core" if threads > 1 else ""
    source += f", divided by {shares}" if shares > 1 else ""
    draft.add("cpus_per_gpu", max(1, cpus // threads // shares), source)


def draft_memory(draft: Draft, node: Node, config: Dict[str, str], *, share: float) -> None:
    """Set ``mem`` to ``share`` (0 to 1) of the node's memory if Slurm gives less to jobs that request none."""
    counted = f"{node.partition.get('SelectTypeParameters', '')} {config.get('SelectTypeParameters', '')}"
    defaults = [text for facts in (node.partition, config) for text in _limited(facts)]
    if "MEMORY" not in counted.upper() or not defaults:
        return
    memory = (number(node.facts.get("RealMemory", "")) or node.nodes.memory) - number(
        node.facts.get("MemSpecLimit", "")
    )
    if most := number(node.partition.get("MaxMemPerNode", "")):
        memory = min(memory, most)
    if memory * share >= GIB:
        source = f"{node.source}: {memory} MiB; jobs without a request get {defaults[0]}"
        draft.add("mem", f"{int(memory * share) // GIB}G", source)


def _limited(facts: Dict[str, str]) -> List[str]:
    """Return the numeric memory defaults of a partition or the cluster as text."""
    pairs: List[Tuple[str, str]] = [(name, facts.get(name, "")) for name in MEMORY_DEFAULTS]
    pairs += re.findall(r"(DefMemPerGPU)=([0-9]+)", facts.get("JobDefaults", ""))
    return [f"{name}={value}" for name, value in pairs if number(value)]


def draft_local_disk(draft: Draft, node: Node, config: Dict[str, str]) -> None:
    """Set ``local_disk`` to Slurm's TmpFS if Slurm knows its size; otherwise add a question."""
    disk, resources = config.get("TmpFS", ""), sorted({*node.nodes.other_gres})
    plugins = f"{config.get('JobContainerType', '')} {config.get('NamespaceType', '')}"  # renamed in Slurm 25.11
    private = "; private for each job (tmpfs)" if "tmpfs" in plugins else ""
    gigabytes = (number(node.facts.get("TmpDisk", "")) or node.nodes.disk) // GIB
    if re.fullmatch(r"/[\w./-]+", disk) and gigabytes:
        draft.add("local_disk", disk, f"scontrol show config: TmpFS, {gigabytes} GB of {node.nodes.first}{private}")
        return
    extra = f" Nodes have the resources {listed(resources)}: does --gres request one of them?" if resources else ""
    text = f"Where is the nodes' local disk? scontrol show config: TmpFS={disk or 'unknown'}, size unknown.{extra}"
    draft.add_question("local_disk", text, "$SLURM_TMPDIR")

"""Draft of a Slurm site from the facts about its cluster."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Tuple

from jobgen.detect.ask import Asker
from jobgen.detect.draft import Draft
from jobgen.detect.gpus import maker
from jobgen.detect.parsing import is_plain, listed, number
from jobgen.detect.slurm.charging import charge
from jobgen.detect.slurm.facts import SlurmFacts, node_facts, read_slurm
from jobgen.detect.slurm.node import NODE, Node, draft_cores, draft_local_disk, draft_memory
from jobgen.detect.slurm.partitions import Kind, Partition, best, kind_of, partitions_of

CONFIG = "scontrol show config"
SINFO = "sinfo"
GPU_WORDS = r"gpu|cuda|dgx|accel|booster"
"""Pattern in names of partitions and features that indicates GPU nodes, even if Slurm does not count GPUs."""
MENTIONED_VARIABLES = {"SBATCH_ACCOUNT", "SBATCH_EXPORT"}
"""Variables with sbatch options that other parts of the draft mention."""
MIN_SLURM_VERSION = (20, 11)
"""Oldest Slurm version for job scripts."""


def draft_slurm(draft: Draft, asker: Asker, config: Dict[str, str], *, partition: str) -> bool:
    """Detect the fields of a Slurm site from ``config`` and further queries; return whether it has Pyxis.

    The values are those of the nodes of ``partition``; "", or a name that Slurm does not list: of the best partition.
    """
    slurm = read_slurm(asker, config)
    version = config.get("SLURM_VERSION", "")
    if is_plain(name := config.get("ClusterName", "")):
        draft.add("name", name, f"{CONFIG}: ClusterName")
    draft.add("name", "slurm", "no command shows the cluster's name")
    draft.add("scheduler", "slurm", f"{CONFIG}: SLURM_VERSION={version}" if version else "sbatch is on this machine")
    if version and _version(version) < MIN_SLURM_VERSION:
        draft.note(
            f"Job scripts need Slurm {'.'.join(map(str, MIN_SLURM_VERSION))} or later; this cluster has {version}."
        )
    partitions = partitions_of(slurm)
    mine = [row for row in partitions if row.name == partition]
    with_gpus = best(mine, gpus=True)
    if not (with_gpus or best(mine, gpus=False)):
        with_gpus, mine = best(partitions, gpus=True), []
    without = best(partitions if with_gpus else mine or partitions, gpus=False)
    if with_gpus:
        kind = kind_of(with_gpus)
        _gpus(draft, asker, slurm, with_gpus, kind)
        _gpu_request(draft, slurm)
        _partitions(draft, partitions, with_gpus, without)
        if without and "mem" in draft.found:
            _memory_without_gpus(draft, kind, without)
    elif without:
        _without_gpus(draft, asker, config, partitions, without)
    else:
        draft.add_question("gpus_per_node", "How many GPUs does a node have? sinfo lists no nodes.", 4)
        draft.add_question("cpus_per_gpu", "How many CPU cores does a node have per GPU?", 8)
        draft.add_question("options.partition", "Which partition has GPUs? sinfo lists none.", "gpu")
    charge(draft, slurm, with_gpus or without, without if with_gpus else None)
    _plugins(draft, slurm, with_gpus)
    _resume(draft, config)
    for name in sorted({*slurm.variables} - MENTIONED_VARIABLES):
        draft.note(f"{name}={slurm.variables[name]} in the environment overrides a script's directives (sbatch(1)).")
    if slurm.mpi and not any(text.startswith("pmix") for text in slurm.mpi):
        draft.note(f"srun --mpi=list: {listed(sorted(slurm.mpi & {'none', 'openmpi', 'pmi2', 'cray_shasta'}))}, no "
                   "pmix: horovod-srun cannot start ranks here, but horovod and horovod-gloo can.")  # fmt: skip
    return slurm.has_pyxis


def _version(text: str) -> Tuple[int, ...]:
    return tuple(int(part) for part in re.findall("[0-9]+", text)[:2])


def _gpus(draft: Draft, asker: Asker, slurm: SlurmFacts, partition: Partition, kind: Kind) -> None:
    """Detect GPUs, cores, disk and memory of a node of the partition."""
    gres = ":".join(filter(None, ["gpu", kind.gpus.type, str(kind.gpus.per_node)]))
    counts = sorted({part.per_node for nodes in kind.nodes for part in nodes.gpus if part.type == kind.gpus.type})
    mixed = f"; counts differ ({listed(map(str, counts))}): the smallest" if len(counts) > 1 else ""
    count = 1 if kind.gpus.is_slice else kind.gpus.per_node
    slices = "; GPU slices (MIG): a job uses one" if kind.gpus.is_slice else ""
    draft.add("gpus_per_node", count, f"{SINFO}, partition {partition.name}: {gres}{mixed}{slices}")
    if kind.gpus.type and (kind.others or kind.gpus.is_slice):
        names = f"; others: {listed(text or 'no type' for text in kind.others)}" if kind.others else ""
        draft.add("gpu_type", kind.gpus.type, f"{SINFO}, partition {partition.name}{names}")
    types = [part.type for nodes in kind.nodes for part in nodes.gpus]
    made_by = maker(types) or maker(text for nodes in kind.nodes for text in nodes.features) or maker([partition.name])
    known = ", ".join(sorted({*filter(None, types)})[:3]) or f"{partition.name} and its nodes' features"
    if made_by in {"nvidia", "amd"}:
        draft.add("accelerator", made_by, f"{SINFO}: from the name {known}")
    elif made_by:
        draft.add("accelerator", "none", f"{SINFO}: {known}; job scripts support only NVIDIA and AMD GPUs")
    else:
        draft.add_question(
            "accelerator",
            f"Are the GPUs from NVIDIA or AMD? {SINFO} does not show it ({gres}).",
            candidate="nvidia",
            choices=("nvidia", "amd"),
        )
    fewest = min(kind.nodes, key=lambda nodes: nodes.cores / kind.shares(nodes))
    node = Node(fewest, node_facts(asker, fewest.first), partition.facts)
    draft_cores(draft, node, shares=kind.shares(fewest))
    draft_local_disk(draft, node, slurm.config)
    least = min(kind.nodes, key=lambda nodes: nodes.memory / kind.shares(nodes))
    if least.memory / kind.shares(least) < fewest.memory / kind.shares(fewest):
        node = Node(least, node_facts(asker, least.first), partition.facts)
    draft_memory(draft, node, slurm.config, share=count / kind.shares(node.nodes))


def _gpu_request(draft: Draft, slurm: SlurmFacts) -> None:
    """Detect the option that requests GPUs: all except --gres need the plugin cons_tres of Slurm 19.05 or later.

    https://slurm.schedmd.com/gres.html, "Running Jobs".
    """
    version, plugin = slurm.config.get("SLURM_VERSION", ""), slurm.config.get("SelectType", "")
    how = f"{CONFIG}: SelectType={plugin}"
    inside = slurm.config.get("SelectTypeParameters", "").upper()
    if plugin == "select/cons_tres" or "OTHER_CONS_TRES" in inside:
        draft.add("gpu_request", "gpus-per-node", how)
    elif plugin in {"select/linear", "select/cons_res", "select/serial"} or "OTHER_" in inside:
        draft.add("gpu_request", "gres", f"{how}, which does not support --gpus-per-node")
    elif version and _version(version) < (19, 5):
        draft.add("gpu_request", "gres", f"{CONFIG}: SLURM_VERSION={version}; --gpus-per-node came with 19.05")
    else:
        draft.add_question(
            "gpu_request",
            f"Which option requests GPUs? SelectType is {plugin or 'not known'}.",
            candidate="gres",
            choices=("gres", "gpus-per-node"),
        )


def _partitions(draft: Draft, every: List[Partition], chosen: Partition, without: Optional[Partition]) -> None:
    others = [part.name for part in every if part.gpu_nodes and part.is_allowed and part.name != chosen.name]
    default = ", the default partition" if chosen.is_default else ""
    source = f"{SINFO}: {chosen.total(gpus=True)} GPUs in {sum(n.size for n in chosen.gpu_nodes)} nodes{default}"
    draft.add("options.partition", chosen.name, source + (f"; others with GPUs: {listed(others)}" if others else ""))
    if others:
        draft.add_question(
            "options.partition", "Is this the right partition for GPU jobs?", choices=[chosen.name, *others]
        )
    if without and not without.is_of_gpus:
        default = ", the default partition" if without.is_default else ""
        source = f"{SINFO}: {without.total(gpus=False)} nodes without GPUs{default}"
        draft.add("cpu_options.partition", without.name, source)


def _memory_without_gpus(draft: Draft, kind: Kind, without: Partition) -> None:
    """Drop ``mem`` for CPU jobs if their nodes have less memory per core than the GPU nodes."""
    own = min(nodes.memory / nodes.cores for nodes in without.nodes)
    if own < min(nodes.memory / nodes.cores for nodes in kind.nodes):
        source = f"{SINFO}: nodes of {without.name} have less memory per core: use Slurm's default"
        draft.add("cpu_options.mem", False, source)


def _without_gpus(
    draft: Draft, asker: Asker, config: Dict[str, str], every: List[Partition], chosen: Partition
) -> None:
    """Detect the fields of a cluster without GPUs: one rank per socket, close to its memory."""
    nodes = min((row for row in chosen.nodes if row.is_up), key=lambda row: row.cores)
    node = Node(nodes, node_facts(asker, nodes.first), chosen.facts)
    sockets = number(node.facts.get("Sockets", "")) or 1
    draft.add("accelerator", "none", f"{SINFO}: no node has gpu as a generic resource")
    draft.add("gpus_per_node", sockets, f"no GPUs: ranks per node, one per socket ({NODE} {nodes.first})")
    draft_cores(draft, node, shares=sockets)
    draft_memory(draft, node, config, share=1)
    draft_local_disk(draft, node, config)
    names = [text for row in every for part in row.nodes for text in (part.partition, *part.features)]
    hints = sorted({text for text in names if re.search(GPU_WORDS, text.lower()) or maker([text])})
    if hints:
        text = f"Do nodes have GPUs that Slurm does not count? Names that suggest so: {listed(hints)}."
        draft.add_question("accelerator", text, "nvidia")
    default = ", the default partition" if chosen.is_default else ""
    others = [part.name for part in every if part.name != chosen.name and part.is_allowed]
    more = f"; others: {listed(others)}" if others else ""
    draft.add("options.partition", chosen.name, f"{SINFO}: {chosen.total(gpus=False)} nodes{default}{more}")
    if others:
        draft.add_question("options.partition", "Is this the right partition?", choices=[chosen.name, *others])


def _plugins(draft: Draft, slurm: SlurmFacts, with_gpus: Optional[Partition]) -> None:
    """Add questions about the site's submit plugins, whose rules no command shows."""
    pairs = [(name, slurm.config.get(name, "")) for name in ("JobSubmitPlugins", "CliFilterPlugins")]
    named = [f"{name}={value}" for name, value in pairs if value]
    if not named:
        return
    text = f"What does the site's submit plugin ({listed(named)}) require or reject? See the site's documentation: "
    draft.add_question("options.partition", f"{text}--gres instead of --gpus-per-node, a GPU type, no partition?")
    if "cpu_options.partition" in draft.found:
        draft.add_question(
            "cpu_options.partition", "Is this partition correct for CPU jobs, or does the plugin choose?"
        )
    features = sorted({text for nodes in (with_gpus.gpu_nodes if with_gpus else []) for text in nodes.features})
    if features:
        draft.add_question(
            "options.constraint", f"Must jobs request a node feature? The nodes have {listed(features)}.", features[0]
        )


def _resume(draft: Draft, config: Dict[str, str]) -> None:
    requeue, wait = config.get("JobRequeue", ""), config.get("KillWait", "")
    if requeue == "1":
        draft.add("resume", "requeue", f"{CONFIG}: JobRequeue=1")
    elif requeue:
        draft.add("resume", "requeue", f"{CONFIG}: JobRequeue={requeue}; scripts request it with --requeue")
        draft.add_question("resume", "May users requeue their jobs (scontrol requeue)?", "none")
    if number(wait):
        draft.note(f"{CONFIG}: KillWait={wait}: time that the ranks have to save after scancel.")
    if config.get("TaskPlugin") in {"task/none", ""} and "TaskPlugin" in config:
        draft.note(
            f"{CONFIG}: TaskPlugin={config['TaskPlugin'] or 'none'}: jobs are not confined to their cores and GPUs."
        )

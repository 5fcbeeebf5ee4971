"""State that differs between ranks: detected by digests at a save, and gathered on rank 0 to save for each rank."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from slipway.base.errors import to_json, warn
from slipway.base.memory_limits import available_memory
from slipway.capture.data_parallel import ReplicatedTensors
from slipway.checkpoint.format import Tensors
from slipway.checkpoint.shards import is_sharded
from slipway.checkpoint.stateful import RANKS, Stateful, restores_in_place, split, state_of
from slipway.dist.collectives import all_gather_json, gather_bytes, raise_first
from slipway.dist.communicator import Communicator

log = logging.getLogger(__name__)

LIMIT = 64 << 20
"""Maximum bytes of one component that are saved for each rank."""
GRADIENTS = "gradients"
"""Name under which a checkpoint stores the gradients."""
TREES = "trees"
"""Name of the entry that holds the state trees as JSON, in the tensors that a rank sends."""


@dataclass
class PerRankState:
    """Checkpoint contents that belong to individual ranks."""

    facts: dict[str, Any] = field(default_factory=dict)
    tensors: Tensors = field(default_factory=dict)
    """On rank 0 only, like ``trees``."""
    trees: dict[str, Any] = field(default_factory=dict)


def collect(
    components: Mapping[str, Stateful], replicas: ReplicatedTensors, comm: Communicator, *, warned: set[tuple[str, str]]
) -> PerRankState:
    """Compare ``components`` on all ranks, and gather states that differ from rank 0's; all ranks must call this.

    Args:
        components: the components, by name.
        replicas: knows which of their tensors need no comparison.
        comm: communicator of this rank.
        warned: slugs and names of earlier warnings; the function adds new ones.

    Raises:
        SlipwayError: on every rank, if a state cannot be saved on one of them.
    """
    states: dict[str, Mapping[Any, Any]] = {}
    own: dict[str, Any] = {}
    averaged: dict[str, str] = {}
    failure: Exception | None = None
    try:
        states = {name: state_of(name, component) for name, component in components.items()}
        own = {name: replicas.fingerprint(name, state) for name, state in states.items()}
        averaged = {name: replicas.averaged(name, state).digest for name, state in states.items()}
    except Exception as error:  # noqa: BLE001 -- raised again below on all ranks
        failure = error
    gathered = all_gather_json(comm, [own, averaged, failure and to_json(failure), available_memory()])
    by_rank, averaged_by_rank, errors, memory = map(list, zip(*gathered, strict=True))
    raise_first(failure, errors)
    size = comm.world.size
    differing = [name for name in own if any(found[name][0] != own[name].digest for found in by_rank)]
    limits = {GRADIENTS: memory[0] // (4 * size)}
    unsaved = [
        name
        for name in differing
        if max(found[name][1] for found in by_rank) > limits.get(name, LIMIT)
        or (name not in replicas.modules and _has_shards(states[name]))
    ]
    differing = [name for name in differing if name not in unsaved]
    apart = PerRankState()
    unlike = [name for name in averaged if any(found[name] != averaged[name] for found in averaged_by_rank)]
    if names := _news("ranks-differ", unlike, warned, comm):
        text = "%s: parameters differ between ranks although their gradients are averaged; rank 0's are saved"
        warn(log, "ranks-differ", text, names)
    if names := _news("rank-state-not-saved", unsaved, warned, comm):
        text = "%s: differs between ranks and is too large to save for each rank; this run cannot be resumed"
        warn(log, "rank-state-not-saved", text, names)
    if unsaved:
        apart.facts["unsaved"] = unsaved
    if synchronized := [name for name in replicas.synchronized() if name in differing]:
        apart.facts["synchronized"] = synchronized
    if unsynchronized := [name for name in replicas.unsynchronized() if name in differing]:
        apart.facts["unsynchronized"] = unsynchronized
    if differing:
        root = by_rank[0]
        sent: dict[str, Tensor] = {}
        trees: dict[str, Any] = {}
        for name in differing:
            if own[name].digest != root[name][0]:
                of_rank = {comm.world.rank: dict(replicas.own(name, states[name]))}
                in_place = restores_in_place(components[name])
                tensors, trees[name] = split(of_rank, f"{RANKS}{name}", restored_in_place=in_place)
                sent |= tensors
        _gather(sent, trees, comm, apart)
    return apart


def _has_shards(state: Mapping[Any, Any]) -> bool:
    """Return whether ``state`` contains a DTensor."""
    return any(map(is_sharded, split(state, "state")[0].values()))


def _news(slug: str, names: list[str], warned: set[tuple[str, str]], comm: Communicator) -> str:
    """Return, on rank 0, the components in ``names`` without an earlier warning ``slug``, as text; else ""."""
    new = [(slug, name) for name in names if (slug, name) not in warned]
    warned.update(new)
    return ", ".join(name for _, name in new) if comm.world.is_root else ""


def _gather(sent: Mapping[str, Tensor], trees: Mapping[str, Any], comm: Communicator, apart: PerRankState) -> None:
    """Gather the tensors ``sent`` and the state ``trees`` of each rank into ``apart``, on rank 0."""
    copies = {place: tensor.to("cpu", copy=True).contiguous() for place, tensor in sent.items()}
    copies[TREES] = torch.frombuffer(bytearray(json.dumps(trees).encode()), dtype=torch.uint8)
    for data in gather_bytes(comm, save(copies) if trees else b""):
        if not data:
            continue
        found = load(data)
        for name, tree in json.loads(found.pop(TREES).numpy().tobytes()).items():
            apart.trees.setdefault(f"{RANKS}{name}", {"dict": []})["dict"].extend(tree["dict"])
        for place, tensor in found.items():
            apart.tensors.setdefault(place.partition("/")[0], {})[place] = tensor

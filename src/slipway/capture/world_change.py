"""Resuming a checkpoint that holds state of individual ranks on another number of ranks."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from slipway.base.errors import StateMismatchError, warn
from slipway.checkpoint.fingerprint import fingerprint
from slipway.checkpoint.header import Header
from slipway.checkpoint.stateful import RANKS, WITHOUT_TENSORS, Stateful, join
from slipway.dist.data_ranks import DataRanks
from slipway.rng.generator_state import GeneratorAdapter, wrapped
from slipway.rng.seeding import derive, reseed
from slipway.state.model_state import Model
from slipway.state.module_attributes import ATTRIBUTES, ModuleAttributes, attributes_equal_to, generator_digests

log = logging.getLogger(__name__)


def require_restorable(header: Header, parts: Mapping[str, Stateful], ranks: DataRanks) -> None:
    """Check that ``ranks`` can continue from the checkpoint, and warn of state that individual ranks lose.

    Generators of additional ranks get seeds of their own rank. Buffers and attributes become those of rank 0. If the
    next forward pass broadcasts them anyway, nothing is lost, and the function does not warn.

    Raises:
        StateMismatchError: if a rank would continue with a state other than its own.
    """
    if unsaved := header.facts.get("unsaved"):
        raise StateMismatchError(
            "rank-state-not-saved",
            f"{', '.join(unsaved)}: differed between ranks and was too large to save for each rank. Start a new run in "
            "another folder, and keep this state identical on all ranks.",
        )
    saved, size = header.facts["world_size"], len(ranks.coordinates)
    apart = [name.removeprefix(RANKS) for name in header.trees if name.startswith(RANKS)]
    if ranks.same(header.facts) or not apart:
        return
    if fixed := [name for name in apart if not _fits_any_size(name, header, parts.get(name))]:
        raise StateMismatchError(
            "different-ranks",
            f"{', '.join(fixed)}: differed between the {saved} rank(s) that saved this run, which now has {size}. "
            f"Continue on {saved} rank(s).",
        )
    apart = [name for name in apart if name not in header.facts.get("synchronized", ())]
    if not apart:
        return
    warn(
        log,
        "rank-state-changed",
        "%s: differed between the %d rank(s) that saved this run; not all of the %d current ranks can have their own",
        *(", ".join(apart), saved, size),
    )


def warn_of_world_size(header: Header, size: int) -> None:
    """Warn of restored attributes that may be the number of ranks that saved the run, if ``size`` differs from it."""
    saved = header.facts.get("world_size", size)
    if saved != size and (names := attributes_equal_to(saved, join(WITHOUT_TENSORS, header.trees.get(ATTRIBUTES)))):
        warn(
            log,
            "rank-state-changed",
            "attributes that the run set to %d, the number of ranks that saved it, were restored on %d rank(s): %s",
            *(saved, size, names),
        )


def reseed_generators(header: Header, parts: Mapping[str, Stateful], rank: int) -> None:
    """Seed generators that differed between ranks for the additional coordinate ``rank``, which has rank 0's state."""
    for name, part in parts.items():
        if f"{RANKS}{name}" in header.trees:
            for adapter in _generators_apart(name, part, header):
                digest = fingerprint(adapter.state_dict()).digest
                reseed(adapter.generator, derive(int(digest[:16], 16), rank))


def _generators_apart(name: str, part: Stateful, header: Header) -> list[Any]:
    """Return the adapters of the generators in ``part`` that differed between ranks."""
    if isinstance(part, GeneratorAdapter):
        return [part]
    if not isinstance(part, ModuleAttributes):
        return []
    trees = [header.trees[name], *(tree for _, tree in header.trees[f"{RANKS}{name}"]["dict"])]
    root, *others = (generator_digests(join(WITHOUT_TENSORS, tree)) for tree in trees)
    return [
        wrapped(generator)
        for place, generator in part.generators().items()
        if any(other.get(place) != root.get(place) for other in others)
    ]


def _fits_any_size(name: str, header: Header, part: Stateful | None) -> bool:
    """Return whether rank 0's state can replace the individual ranks' states of the component ``name``."""
    if isinstance(part, Model):
        parameters = {key for key, _ in part.module.named_parameters()}
        states = [tree for _, tree in header.trees[f"{RANKS}{name}"]["dict"]]
        return not any(key in parameters for state in states for key, _ in state["dict"])
    return isinstance(part, (GeneratorAdapter, ModuleAttributes))

"""A checkpoint that holds state of single ranks, and another number of ranks that continues from it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from slipway.base.errors import StateMismatchError, warn
from slipway.checkpoint.components import RANKS, Stateful, join
from slipway.checkpoint.fingerprint import fingerprint
from slipway.checkpoint.header import Header
from slipway.rng.generator_state import GENERATORS, wrapped
from slipway.rng.seeding import derive
from slipway.state.model_state import Model
from slipway.state.module_attributes import ATTRIBUTES, ModuleAttributes, digests_of_generators, names_of

log = logging.getLogger(__name__)

OF_GENERATORS = tuple(GENERATORS.values())
WITHOUT_TENSORS: Mapping[str, Any] = defaultdict(type(None))
"""Stands for the tensors of a state, of which only the rest is looked at."""


def require_restorable(header: Header, parts: Mapping[str, Stateful], size: int) -> None:
    """Warn of what the checkpoint does not hold for each of ``size`` ranks, and refuse to continue without it.

    Generators of further ranks are seeded anew; buffers and attributes are those of rank 0. Nothing is lost
    if the next forward pass makes them so on any number of ranks.

    Raises:
        StateMismatchError: if a rank would continue with another state than its own.
    """
    if unsaved := header.facts.get("unsaved"):
        raise StateMismatchError(
            "rank-state-not-saved",
            f"{', '.join(unsaved)}: was too large to be saved for each rank, and differed between them. Start anew in "
            "another folder, and keep it alike on all ranks.",
        )
    saved = header.facts["world_size"]
    apart = [name.removeprefix(RANKS) for name in header.trees if name.startswith(RANKS)]
    if saved == size or not apart:
        return
    if fixed := [name for name in apart if not _fits_any_size(name, header, parts.get(name))]:
        raise StateMismatchError(
            "different-ranks",
            f"{', '.join(fixed)}: differed between the {saved} rank(s) that saved this run, and {size} continue it. "
            f"Continue with {saved}.",
        )
    apart = [name for name in apart if name not in header.facts.get("synchronized", ())]
    if not apart:
        return
    warn(
        log,
        "rank-state-changed",
        "%s: differed between the %d rank(s) that saved this run; the %d that continue it cannot all have their own",
        *(", ".join(apart), saved, size),
    )


def warn_of_world_size(header: Header, size: int) -> None:
    """Warn of attributes that may be the number of ranks that saved the run, as they are restored on ``size`` ranks."""
    saved = header.facts.get("world_size", size)
    if saved != size and (names := names_of(saved, join(WITHOUT_TENSORS, header.trees.get(ATTRIBUTES)))):
        warn(
            log,
            "rank-state-changed",
            "set since the run began to %d, the number of ranks that saved it, and restored on %d rank(s): %s",
            *(saved, size, names),
        )


def reseed_generators(header: Header, parts: Mapping[str, Stateful], rank: int) -> None:
    """Give generators that differed between the ranks, and now hold rank 0's state, a state for ``rank`` alone."""
    if rank < header.facts["world_size"]:
        return
    for name, part in parts.items():
        if f"{RANKS}{name}" in header.trees:
            for generator in _generators_apart(name, part, header):
                generator.seed(derive(int(fingerprint(generator.state_dict()).digest[:16], 16), rank))


def _generators_apart(name: str, part: Stateful, header: Header) -> list[Any]:
    """Return the generators in ``part`` that differed between the ranks."""
    if isinstance(part, OF_GENERATORS):
        return [part]
    if not isinstance(part, ModuleAttributes):
        return []
    trees = [header.trees[name], *(tree for _, tree in header.trees[f"{RANKS}{name}"]["dict"])]
    root, *others = (digests_of_generators(join(WITHOUT_TENSORS, tree)) for tree in trees)
    return [
        wrapped(generator)
        for place, generator in part.generators().items()
        if any(other.get(place) != root.get(place) for other in others)
    ]


def _fits_any_size(name: str, header: Header, part: Stateful | None) -> bool:
    """Return whether the state of single ranks in the component ``name`` can be replaced, with a warning."""
    if isinstance(part, Model):
        parameters = {key for key, _ in part.module.named_parameters()}
        states = [tree for _, tree in header.trees[f"{RANKS}{name}"]["dict"]]
        return not any(key in parameters for state in states for key, _ in state["dict"])
    return isinstance(part, (*OF_GENERATORS, ModuleAttributes))

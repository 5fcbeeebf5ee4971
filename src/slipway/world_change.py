"""A checkpoint that holds state of single ranks, and another number of ranks that continues from it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from slipway.checkpoint.components import RANKS, Stateful
from slipway.checkpoint.header import Header
from slipway.errors import StateMismatchError, warn
from slipway.fingerprint import fingerprint
from slipway.generator_state import GENERATORS
from slipway.model_state import Model
from slipway.module_attributes import ModuleAttributes
from slipway.seeding import derive

log = logging.getLogger(__name__)

OF_GENERATORS = tuple(GENERATORS.values())


def require_restorable(header: Header, parts: Mapping[str, Stateful], size: int) -> None:
    """Warn of what the checkpoint does not hold for each of ``size`` ranks, and refuse to continue without it.

    Generators of further ranks are seeded anew; buffers and attributes of models are those of rank 0. Nothing is lost
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


def reseed_generators(header: Header, parts: Mapping[str, Stateful], rank: int) -> None:
    """Give generators that differed between the ranks, and now hold rank 0's state, a state for ``rank`` alone."""
    for name, part in parts.items():
        if isinstance(part, OF_GENERATORS) and f"{RANKS}{name}" in header.trees and rank >= header.facts["world_size"]:
            part.seed(derive(int(fingerprint(part.state_dict()).digest[:16], 16), rank))


def _fits_any_size(name: str, header: Header, part: Stateful | None) -> bool:
    """Return whether the state of single ranks in the component ``name`` can be replaced, with a warning."""
    if isinstance(part, Model):
        parameters = {key for key, _ in part.module.named_parameters()}
        states = [tree for _, tree in header.trees[f"{RANKS}{name}"]["dict"]]
        return not any(key in parameters for state in states for key, _ in state["dict"])
    return isinstance(part, (*OF_GENERATORS, ModuleAttributes))

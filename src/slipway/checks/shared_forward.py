"""Check that all ranks call a sharded model outside loops over batches: each such call needs all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from slipway.base.errors import SessionError
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator
from slipway.dist.data_ranks import fsdp_groups

FORWARD = "a forward pass of the model"


class SharedForward:
    """Compares what the ranks do next, at each such call and at each call of the session that waits for other ranks.

    A rank that evaluates alone would wait in the model, and the others in the session, until a timeout of half an hour.
    Within loops over batches nothing is compared, because that would cost time in each step.
    """

    def __init__(self, models: Iterable[Any], comm: Communicator) -> None:
        """Register hooks on those of ``models`` that ``fully_shard`` has sharded; not on compiled ones."""
        self._comm = comm
        self.within_pass = False
        """Whether the script is in a loop over batches."""
        self._hooks: list[Any] = []
        for model in models if comm.world.size > 1 else ():
            groups = [group for part in model.modules() for group in fsdp_groups(part)]
            if groups and not hasattr(model, "_orig_mod") and not getattr(model, "_compiled_call_impl", None):
                self._hooks.append(model.register_forward_pre_hook(self._hook_of(groups), prepend=True))

    def close(self) -> None:
        """Remove the hooks; nothing is compared from now on."""
        while self._hooks:
            self._hooks.pop().remove()

    def agree(self, what: str) -> None:
        """Compare what this rank does next with the other ranks, outside loops over batches.

        Raises:
            SessionError: on every rank, if one of them does something else.
        """
        if not self._hooks or self.within_pass:
            return
        found = all_gather_json(self._comm, what)
        if (other := next((each for each in found if each != found[0]), None)) is None:
            return
        ranks = [str(rank) for rank, each in enumerate(found) if each == found[0]]
        text = (
            f"rank(s) {', '.join(ranks)} came to {found[0]}, and others to {other}: each forward pass of a sharded "
            "model, and each session.batches, needs all ranks. Call it on all of them."
        )
        error = SessionError("uneven-forward", text) if FORWARD in found else SessionError("uneven-passes", text)
        error.raised_on_all_ranks = True
        raise error

    def _hook_of(self, groups: Iterable[Any]) -> Any:
        def look(_module: nn.Module, _inputs: Any) -> None:
            if any(not getattr(group, "is_unsharded", False) for group in groups):  # else it does not communicate
                self.agree(FORWARD)

        return look

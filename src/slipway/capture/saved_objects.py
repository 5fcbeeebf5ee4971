"""The objects that a session saves: compared and captured at a save, restored at opening and before training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch import nn

from slipway.base.errors import SessionError
from slipway.capture.data_parallel import ReplicatedTensors
from slipway.capture.per_rank import GRADIENTS, PerRankState, collect
from slipway.capture.world_change import reseed_generators
from slipway.checkpoint import stateful
from slipway.checkpoint.fingerprint import fingerprint
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.stateful import Restored, Stateful
from slipway.dist.collectives import all_gather_json
from slipway.dist.communicator import Communicator
from slipway.dist.data_ranks import DataRanks
from slipway.state.optimizer_attributes import parameters_in
from slipway.state.saved_gradients import SavedGradients

log = logging.getLogger(__name__)

UNREDUCED = "unreduced_gradients"
"""Fact of a checkpoint at the end of a run: models whose last gradients ``fully_shard`` had not reduced."""


class SavedObjects:
    """The components of a session on one rank, and their gradients."""

    def __init__(
        self, parts: Mapping[str, Stateful], given: Mapping[str, Any], comm: Communicator, data_ranks: DataRanks
    ) -> None:
        """Store the components to save and restore.

        Args:
            parts: the components, by name.
            given: the script's objects by the same names: models with their wrappers, optimizers, others.
            comm: communicator of this rank.
            data_ranks: the ranks' data-parallel coordinates.
        """
        self._parts, self._comm, self._data_ranks = parts, comm, data_ranks
        modules = {name: value for name, value in given.items() if isinstance(value, nn.Module)}
        optimizers = {name: value for name, value in given.items() if hasattr(value, "param_groups")}
        self._replicas = ReplicatedTensors(modules, optimizers)
        self._gradients = SavedGradients(modules, optimizers)
        self._apart = PerRankState()
        self._warned: set[tuple[str, str]] = set()
        self._found: Checkpoint | None = None
        self._restored: dict[str, str | None] | None = None

    @property
    def is_sharded(self) -> bool:
        """Whether a component's state contains DTensors, the same on all ranks."""
        return stateful.has_shards(self._parts)

    def restore(self, found: Checkpoint | None) -> Header:
        """Restore the components from ``found``, and return its header; all ranks must call this.

        Args:
            found: on rank 0, the checkpoint, which is kept for ``restore_again``; None for a new run.
        """
        restored = self._restore(self._parts, found)
        if restored is None:
            return Header(Position())
        if restored.header.facts:  # without facts, these are a new run's initial weights
            self._found, self._restored = found, {name: self._digest(name) for name in self._parts}
        return restored.header

    def restore_again(self) -> None:
        """Restore the components that have changed since ``restore`` a second time, and the gradients.

        All ranks must call this. It does nothing in a new run, or at a second call. Unchanged components are not
        restored again, because the script may hold references to their contents.
        """
        before, self._restored = self._restored, None
        if before is None:
            return
        found, self._found = self._found, None
        now = {name: self._digest(name) for name in self._parts}
        own = [
            name
            for name, digest in now.items()
            if digest is None or digest != before[name] or getattr(self._parts[name], "is_incomplete", False)
        ]
        changed = sorted({name for names in all_gather_json(self._comm, own) for name in names})
        if changed:
            log.info("restored again, because the script changed it after the session opened: %s", ", ".join(changed))
        restored = self._restore({GRADIENTS: self._gradients, **{name: self._parts[name] for name in changed}}, found)
        if restored and GRADIENTS in restored.missing:
            self._gradients.load_state_dict({})

    def collect(self, *, gradients_wait: bool, within_pass: bool) -> dict[str, Any]:
        """Compare the components, and gather differing states for the next ``capture``; all ranks must call this.

        Args:
            gradients_wait: whether gradients wait for an optimizer step on a rank.
            within_pass: whether all ranks are within a training pass and have batches left.

        Returns:
            Facts for the checkpoint header.

        Raises:
            SlipwayError: on every rank, if a state cannot be saved on one of them.
        """
        self._found = self._restored = None  # training has continued: the restored state is outdated
        self._gradients.wait, self._replicas.within_pass = gradients_wait, within_pass
        self._apart = PerRankState()
        if self._comm.world.size > 1:
            everything = {**self._parts, GRADIENTS: self._gradients}
            self._apart = collect(everything, self._replicas, self._comm, warned=self._warned)
        return self._apart.facts

    def require_reduced(self, optimizer: Any) -> None:
        """Check that a step of ``optimizer`` has gradients, if ``fully_shard`` has computed some.

        Raises:
            SessionError: if they are not reduced, so that no parameter of the optimizer has one.
        """
        if any(parameter.grad is not None for parameter in parameters_in(optimizer)):
            return
        if names := self._gradients.unreduced(optimizer):
            raise SessionError(
                "gradients-not-reduced",
                f"an optimizer steps without gradients, because those of {', '.join(names)} are not reduced over the "
                "ranks: call set_requires_gradient_sync(True) before the last backward pass before a step.",
            )

    def unreduced_gradients(self) -> dict[str, Any]:
        """Return, as facts for the checkpoint at the end of a run, the models with gradients that it cannot hold."""
        names = self._gradients.unreduced()
        return {UNREDUCED: names} if names else {}

    def capture(self, header: Header) -> Checkpoint:
        """Return a checkpoint of the components and of the states that ``collect`` gathered.

        Only rank 0 calls this, or all ranks if ``is_sharded``: then each rank's checkpoint holds its own shards. A
        ``header`` without facts is that of a checkpoint that is not saved.

        Raises:
            SessionError: if a checkpoint cannot hold the state.
        """
        lost = [] if UNREDUCED in header.facts or not header.facts else self._gradients.unreduced()
        if lost:
            raise SessionError(
                "unsavable-state",
                f"{', '.join(lost)}: holds gradients that are not reduced yet (set_requires_gradient_sync or "
                "set_requires_all_reduce is off), which a checkpoint cannot hold.",
            )
        gradients = {GRADIENTS: self._gradients} if self._gradients.state_dict() else {}
        captured = stateful.capture({**self._parts, **gradients}, header)
        apart, self._apart = self._apart, PerRankState()
        trees = {**captured.header.trees, **apart.trees}
        return Checkpoint({**captured.tensors, **apart.tensors}, captured.header._replace(trees=trees))

    def _restore(self, parts: Mapping[str, Stateful], found: Checkpoint | None) -> Restored | None:
        ranks, rank = self._data_ranks, self._comm.world.rank
        restored = stateful.restore(
            parts, found, self._comm, saved_rank=lambda facts: ranks.saved_rank(facts, rank) if facts else None
        )
        if restored and (facts := restored.header.facts):
            if ranks.same(facts):
                self._replicas.set_unsynchronized(facts.get("unsynchronized", ()))
            elif ranks.saved_rank(facts, rank) is None:
                reseed_generators(restored.header, parts, ranks.world.rank)
        return restored

    def _digest(self, name: str) -> str | None:
        """Return the digest of a component's state; None if its state cannot be saved."""
        try:
            part = self._parts[name]
            return fingerprint(part.state_dict(), restored_in_place=stateful.restores_in_place(part)).digest
        except Exception:  # noqa: BLE001 -- raised by code of the script; a save reports it
            return None

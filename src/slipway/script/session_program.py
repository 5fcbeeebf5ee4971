"""Program that a session gives to Run for a user script: data position, logged values, checkpoint contents."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from slipway.base.errors import SessionError
from slipway.base.goodput import describe, read_goodput
from slipway.capture.saved_objects import UNREDUCED
from slipway.checkpoint.format import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checkpoint.stateful import join, split
from slipway.checks.rank_data import RankData
from slipway.checks.skipped_steps import Scalers
from slipway.data.feed import Feed, RankPosition
from slipway.dist.collectives import all_gather_json
from slipway.rng.generator_state import SavedGenerator, wrapped
from slipway.rng.loader_generators import is_local_generator
from slipway.rng.seeding import Generators, Purpose
from slipway.run.metrics import Record
from slipway.run.program import Speed
from slipway.run.status import Status
from slipway.script.identity import facts_of
from slipway.script.opening import Opened
from slipway.script.pass_means import Means, Part
from slipway.script.step_metrics import Sums, Window
from slipway.script.terminal import ProgressLine
from slipway.state.pending_gradients import PendingGradients

log = logging.getLogger(__name__)


class SessionProgram:
    """Implementation of ``slipway.run.program.Program`` for a user script."""

    def __init__(
        self,
        opened: Opened,
        *,
        optimizers: Sequence[Any],
        scalers: Iterable[Any],
        extra: Mapping[str, Any],
        parameters: Sequence[Tensor],
        repeat_epoch: bool,
        allow_nonfinite: bool,
    ) -> None:
        """Continue from the checkpoint that was found when the run folder was opened.

        Args:
            opened: the opened run folder.
            optimizers: the session's optimizers. Records contain the learning rate of the first one.
            scalers: GradScalers. The script may log inf or nan in a step that one of them skips.
            extra: other objects of the script, by name.
            parameters: the models' parameters. Their devices are those on which the script computes.
            repeat_epoch: see Session.
            allow_nonfinite: see Session.
        """
        self._comm, self._goodput = opened.comm, opened.folder.goodput
        self._objects, self._optimizers, self.parameters = opened.objects, optimizers, parameters
        self._seed, self._allow_nonfinite = opened.seed, allow_nonfinite
        world, facts = opened.comm.world, opened.found.facts
        self._data_ranks = opened.data_ranks
        self.start = opened.found.position
        """Position at which this rank continues."""
        self.feed = Feed(self._data_ranks.world, seed=opened.seed, repeat_epoch=repeat_epoch)
        self._carried = facts.get("window", [])
        self.window = Window(world.rank, world.size, self._carried)
        self.means = Means(world.rank, world.size)
        self._scalers = Scalers(scalers)
        self._parts_of_means: list[Part] = []
        self._passes = 0
        self.generators = Generators(opened.seed, self._data_ranks.world.rank, parameters)
        self._saved_generators: dict[str, Any] | None = None
        self._given_generators = {name: each for name, each in extra.items() if is_local_generator(each)}
        self._begun_generators: Any = None
        """JSON tree of the states of the given generators at the beginning of the current or the resumed epoch."""
        self.is_resumed = "feed" in facts
        """Whether the run folder holds a run that a session has saved."""
        self.lowest = (0, 0)
        """Position of the slowest rank when the run was saved: the pass number and its batches done."""
        self.left_early: dict[int, int] = {}
        """Calls of ``epochs`` and ``steps`` that the script has left by ``break``: call number to iterations done."""
        self.pending = PendingGradients(parameters, optimizers, carried=facts.get("carries_gradients"))
        self.save_hooks: list[Callable[[], None]] = []
        """Functions to call before the run is saved; they may log warnings."""
        if self.is_resumed:
            self.left_early = dict(facts["left_early"])
            self.lowest = min(RankPosition(*each).in_epoch for each in facts["feed"]["places"])
            self.start = self.start._replace(step=self.feed.resume(facts["feed"], self.start.step))
            self.means.resume(facts.get("means", {}), under_way=self.feed.resumed_pass)
            if self._data_ranks.same(facts):
                self._saved_generators = facts["generators"][world.rank]
                self._begun_generators = facts.get("given_generators", {world.rank: None})[world.rank]
        self._rank_data = RankData(self.feed.data, world.size, step=self.start.step)
        self._positions: list[RankPosition] = []
        self._progress = ProgressLine()
        self._was_sharded = self.is_sharded
        self.is_ending = False
        """Whether the training ends here, unless a later attempt extends it."""
        self._lost_gradients = facts.get(UNREDUCED, [])
        self.total_epochs = self.total_steps = 0
        """Totals of the whole run, as passed to ``epochs`` and ``steps``; 0 if unknown."""

    def resume_generators(self, *position: int) -> None:
        """Restore the generators if they were saved at this position on the same number of ranks; else seed them."""
        saved, self._saved_generators = self._saved_generators, None
        if saved and position[-1]:
            self.generators.restore(saved)
        else:
            self.generators.seed(Purpose.BODY, *position)

    def begin_epoch(self, *, is_resumed: bool) -> None:
        """Prepare the given generators for the code at the beginning of an epoch.

        Args:
            is_resumed: whether the run was saved within this epoch, so that the code draws the same numbers again.
        """
        if is_resumed and self._begun_generators is not None:
            for name, saved in join({}, self._begun_generators).items():
                if name in self._given_generators:
                    wrapped(self._given_generators[name]).load_state_dict(saved.state)
        else:
            states = {name: SavedGenerator.of(each) for name, each in self._given_generators.items()}
            _, self._begun_generators = split(states, "generators")

    def before_step(self, optimizer: Any) -> None:
        """Record that an optimizer is about to step.

        Raises:
            SessionError: if ``fully_shard`` holds all gradients of the optimizer, so that the step would do nothing.
        """
        self.pending.before_step(optimizer)
        self._objects.require_reduced(optimizer)

    def restore_again(self) -> None:
        """Restore the objects a second time, when training continues; all ranks must call this.

        Script code that ran after the session was opened therefore cannot change a resumed run. Values that this code
        has logged are dropped, because an earlier attempt has logged them.
        """
        world = self._comm.world
        self.window = Window(world.rank, world.size, self._carried)
        self._objects.restore_again()

    def described(self, position: Position) -> dict[str, float]:
        """Return the fractional epoch and the learning rate of the first optimizer."""
        groups = [group for each in self._optimizers for group in getattr(each, "param_groups", ())]
        rates = [float(group["lr"]) for group in groups if "lr" in group]
        return {"epoch": self._epochs_done(position), **({"lr": rates[0]} if rates else {})}

    def begin_pass(self, loader: object) -> None:
        """Begin the means of a pass, or continue them if the pass is resumed.

        ``loader`` is the pass's loader; None if its data need not be compared between the ranks.
        """
        feed = self.feed
        self._passes += 1
        self._rank_data.begin_pass(feed.number, loader, size=feed.size)
        resumed = feed.resumed_pass != feed.number if feed.is_counting else feed.is_resuming or feed.batch > 0
        self.means.begin(feed.number, resumed=resumed)

    def end_pass(self) -> None:
        """End the means of a pass that has ended on all ranks."""
        self.means.end(all_gather_json(self._comm, self.means.part()))

    # Methods that Run calls.

    def local_counters(self) -> list[float]:
        """Return numbers from whose sums ``on_reduced`` detects ranks in different passes, or with different data.

        Logged values are exchanged by ``sync_step`` instead, because their names may differ between ranks.
        """
        passes = float(self._passes % 1024)  # squares and their sums are exact
        total = float(self.feed.total or 0) if self._was_sharded else 0.0
        return [passes, passes**2, total, total**2, float(total > 0), *self._rank_data.counters()]

    def on_reduced(self, position: Position, sums: list[float]) -> Position:
        """Return ``position`` unchanged.

        Raises:
            SessionError: on every rank, if the ranks are in different passes and would deadlock, if those of a sharded
                model have different numbers of batches, or if they divide different data among them.
        """
        passes, squares, totals, squares_of_totals, known, *data = sums
        if squares * self._comm.world.size != passes**2:
            error = SessionError(
                "uneven-passes",
                "some ranks have called session.batches and others have not: call it on all ranks. For a loop on one "
                "rank only, iterate over the loader directly.",
            )
            error.raised_on_all_ranks = True
            raise error
        if known == self._comm.world.size and squares_of_totals * known != totals**2:
            error = SessionError(
                "uneven-batches",
                "the ranks have different numbers of batches in this pass, and each forward pass of a sharded model "
                "needs all ranks: use slipway.Sampler, or drop the batches that other ranks lack.",
            )
            error.raised_on_all_ranks = True
            raise error
        self._rank_data.check(data, step=position.step)
        return position

    def sync_step(self, step: int) -> int:
        """Exchange logged values and positions between all ranks; return the step of the furthest rank.

        Raises:
            SessionError: on every rank, if one of them has logged inf or nan and that is not allowed.
        """
        logged = self.window.part()
        nonfinite = [] if self._allow_nonfinite else self._nonfinite(logged)
        found = all_gather_json(self._comm, [logged, self.feed.position(step), self.means.part(), nonfinite])
        self.window.parts, positions, self._parts_of_means, nonfinite_by = map(list, zip(*found, strict=True))
        self._positions = [RankPosition(*each) for each in positions]
        furthest = max(position.step for position in self._positions)
        if names := sorted({name for names in nonfinite_by for name in names}):
            scaler = "" if self._scalers else " If a GradScaler skips such steps, pass it: Session(scaler=scaler)."
            allow = "Session(allow_nonfinite=True) continues in any case."
            error = SessionError(
                "diverged",
                f"{', '.join(names)}: inf or nan was logged at or before step {furthest}. The last checkpoint is "
                f"older. Lower the learning rate, or clip gradients.{scaler} {allow}",
            )
            error.raised_on_all_ranks = True
            raise error
        return furthest

    def record(self, position: Position, speed: Speed) -> Record:
        """Return the record of the logged means, and clear the window."""
        means = self.window.means
        self.window.clear()
        record: Record = {
            "kind": "train",
            "step": position.step,
            **self.described(position),
            "elapsed": position.elapsed,
            **means,
            "steps_per_second": speed.steps_per_second,
        }
        self._progress.show(record, rate=speed.steps_per_second, done=self._done(position))
        return record

    def facts(self) -> dict[str, Any]:
        """Return the facts for the checkpoint header; all ranks must call this."""
        self._require_same_sharding()
        for look in self.save_hooks:
            look()
        within = self.feed.batch  # outside a pass the generators are seeded again
        own = self.generators.capture() if within else None
        has_left = self.feed.is_counting and bool(self.left_early)
        has_more = 0 < self.feed.batch < (self.feed.total or 0) and not has_left
        gathered = all_gather_json(self._comm, [own, self._begun_generators, self.pending.needs_saving, has_more])
        generators, given_generators, waits, within_pass = map(list, zip(*gathered, strict=True))
        return {
            **facts_of(self._seed),
            **self._data_ranks.facts,
            "feed": self.feed.facts(self._data_ranks.firsts(self._positions)),
            "window": self.window.parts,
            "means": self.means.facts(self._parts_of_means),
            "generators": generators,
            "given_generators": given_generators,
            "left_early": [*self.left_early.items()],
            "carries_gradients": self.pending.is_carried,
            **(self._objects.unreduced_gradients() if self.is_ending else {}),
            **self._objects.collect(gradients_wait=any(waits), within_pass=all(within_pass)),
        }

    @property
    def is_sharded(self) -> bool:
        """Whether the objects' state is sharded, so that all ranks call ``capture``."""
        return self._objects.is_sharded

    def capture(self, header: Header) -> Checkpoint:
        """Return a checkpoint of the objects."""
        self._require_same_sharding()
        return self._objects.capture(header)

    def started(self, parts: Mapping[str, float]) -> None:
        """Do nothing: goodput.jsonl records the startup times."""

    def write_results(self) -> None:
        """Do nothing: the script writes its own results."""

    def ended(self, status: Status) -> None:
        """Log how the attempt has ended."""
        if status.state == "done":
            log.info("done at step %d", status.step)
        else:
            log.info("stopped (%s) at step %d, saved: the run resumes there", status.reason, status.step)
        log.info("time: %s", describe(read_goodput(self._goodput)))

    def require_gradients(self) -> None:
        """Check that no gradients are missing with which training would continue.

        Raises:
            SessionError: on every rank, if a run has ended with gradients that were not saved, and is now extended.
        """
        if self._lost_gradients:
            error = SessionError(
                "gradients-not-saved",
                f"{', '.join(self._lost_gradients)}: the run ended with gradients that fully_shard had not reduced, "
                "so it cannot continue exactly.",
            )
            error.raised_on_all_ranks = True
            raise error

    # Private helpers.

    def _require_same_sharding(self) -> None:
        if self.is_sharded != self._was_sharded:
            error = SessionError(
                "sharded-model", "a model was sharded after the session had opened: call fully_shard before Session."
            )
            error.raised_on_all_ranks = True
            raise error

    def _nonfinite(self, logged: Sums) -> list[str]:
        """Return the names of values that were inf or nan on this rank in steps that no GradScaler has skipped."""
        names, skipped = self.window.new_nonfinite_names(logged), self._scalers.have_skipped()
        return [] if skipped else names

    def _epochs_done(self, position: Position) -> float:
        """Return the epochs done, including the fraction of the current one if it is known."""
        feed = self.feed
        if feed.is_counting:
            return float(position.epoch)
        return position.epoch + (feed.batch / feed.total if feed.total else float(feed.number > 0))

    def _done(self, position: Position) -> float:
        """Return the completed fraction of all epochs, or else of all steps: 0 to 1."""
        if self.total_epochs:
            return self._epochs_done(position) / self.total_epochs
        return self.feed.batch / max(1, self.total_steps)

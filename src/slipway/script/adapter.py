"""What a script with a session tells its run: where it stands in its data, what it logs, what a checkpoint holds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from slipway.base.errors import SessionError
from slipway.base.goodput import describe, read_goodput
from slipway.base.status import Status
from slipway.checkpoint.folder import Checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.checks.skipping import Scalers
from slipway.data.feed import Feed
from slipway.dist.collectives import all_gather_json
from slipway.rng.generator_state import GivenGenerators, States
from slipway.rng.seeding import Generators, Purpose
from slipway.run.identity import facts_of
from slipway.run.metrics import Record
from slipway.run.program import Speed
from slipway.script.means import Means, Part
from slipway.script.opening import Opened
from slipway.script.terminal import ProgressLine
from slipway.script.window import Sums, Window
from slipway.state.pending_gradients import PendingGradients

log = logging.getLogger(__name__)


class Script:
    """A script as its run sees it (slipway.run.program.Program)."""

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
        """Go on from what was found when the run folder was opened.

        Args:
            opened: that.
            optimizers: of which the first one's learning rate is recorded.
            scalers: of the loss, whose skipped steps may log inf or nan.
            extra: other objects of the script, by name.
            parameters: tensors whose devices are those that the script computes on.
            repeat_epoch: see Session, as for the others.
            allow_nonfinite: see there.
        """
        self._comm, self._goodput = opened.comm, opened.folder.goodput
        self._objects, self._optimizers, self.parameters = opened.objects, optimizers, parameters
        self._seed, self._allow_nonfinite = opened.seed, allow_nonfinite
        world, facts = opened.comm.world, opened.found.facts
        self.start = opened.found.position
        """Where this rank goes on."""
        self.feed = Feed(world, seed=opened.seed, repeat_epoch=repeat_epoch)
        self._carried = facts.get("window", [])
        self.window = Window(world.rank, world.size, self._carried)
        self.means = Means(world.rank, world.size)
        self._scalers = Scalers(scalers)
        self._parts_of_means: list[Part] = []
        self._passes = 0
        self.generators = Generators(opened.seed, world.rank, parameters)
        self._saved_generators: dict[str, Any] | None = None
        self._given_generators = GivenGenerators(extra)
        self._begun_generators: States | None = None
        """Those of the epoch that is resumed, where it began."""
        self.is_resumed = "feed" in facts
        """Whether a run was found that a session has saved."""
        self.lowest = [0, 0]
        """Where the rank stood that was the last when the run was saved: the pass, and its batches done."""
        self.left_early: dict[int, int] = {}
        """The calls of ``epochs`` and ``steps`` that the script has left by ``break``, and after how many of them."""
        self.pending = PendingGradients(parameters, optimizers, carried=facts.get("carries_gradients"))
        self.before_saves: list[Callable[[], None]] = []
        """What looks for something to say before the run is saved."""
        if self.is_resumed:
            self.left_early = dict(facts["left_early"])
            self.lowest = min(place[:2] for place in facts["feed"]["places"])
            self.start = self.start._replace(step=self.feed.resume(facts["feed"], self.start.step))
            self.means.resume(facts.get("means", {}), under_way=self.feed.resumed_pass)
            if facts["world_size"] == world.size:
                self._saved_generators = facts["generators"][world.rank]
                self._begun_generators = facts.get("given_generators", {world.rank: None})[world.rank]
        self._places: list[list[Any]] = []
        self._progress = ProgressLine()
        self.total_epochs = self.total_steps = 0
        """Of the whole run, as far as the script has said; one of them is 0."""

    def resume_generators(self, *place: int) -> None:
        """Bring the generators to where they were saved, if that was here on as many ranks; or else seed them."""
        saved, self._saved_generators = self._saved_generators, None
        if saved and place[-1]:
            self.generators.restore(saved)
        else:
            self.generators.seed(Purpose.BODY, *place)

    def begin_epoch(self, *, is_resumed: bool) -> None:
        """Let code at the beginning of an epoch draw what it drew there; ``is_resumed`` within the epoch."""
        if is_resumed and self._begun_generators is not None:
            self._given_generators.begin_again(self._begun_generators)
        else:
            self._given_generators.begin_epoch()

    def restore_again(self) -> None:
        """Bring the objects to where they were saved once more, where training continues; all ranks must call this.

        Code of the script between the opening and here cannot change a resumed run then. What it has logged is
        dropped, as it was logged before.
        """
        world = self._comm.world
        self.window = Window(world.rank, world.size, self._carried)
        self._objects.restore_again()

    def described(self, position: Position) -> dict[str, float]:
        """Return the epoch, with its fraction, and the learning rate of the first optimiser."""
        groups = [group for each in self._optimizers for group in getattr(each, "param_groups", ())]
        rates = [float(group["lr"]) for group in groups if "lr" in group]
        return {"epoch": self._epochs_done(position), **({"lr": rates[0]} if rates else {})}

    def begin_pass(self) -> None:
        """Begin the means of a pass of the feed, or continue them in one that is resumed."""
        feed = self.feed
        self._passes += 1
        resumed = feed.resumed_pass != feed.number if feed.is_counting else feed.is_resuming or feed.batch > 0
        self.means.begin(feed.number, resumed=resumed)

    def end_pass(self) -> None:
        """End the means of a pass that has ended on all ranks."""
        self.means.end(all_gather_json(self._comm, self.means.part()))

    # What the run asks.

    def sums(self) -> list[float]:
        """Return the number of passes, and its square: that is equal on all ranks, or else one alone has begun a pass.

        What a script logs has names, of which ranks may use others, and so goes by ``meet``.
        """
        passes = float(self._passes % 1024)  # squares and their sums are exact
        return [passes, passes**2]

    def observed(self, position: Position, sums: list[float]) -> Position:
        """Return ``position`` as it is.

        Raises:
            SessionError: on every rank, if they are in different passes, and would wait for each other for ever.
        """
        passes, squares = sums
        if squares * self._comm.world.size != passes**2:
            error = SessionError(
                "uneven-passes",
                "some ranks call session.batches where others do not: call it on all ranks; on one rank alone, iterate "
                "the loader itself.",
            )
            error.raised_on_all_ranks = True
            raise error
        return position

    def meet(self, step: int) -> int:
        """Add up what all ranks have logged, and learn where they stand."""
        logged, feed = self.window.part(), self.feed
        place = [*feed.place, step, feed.size, [*feed.ended], feed.data.facts()]
        nonfinite = [] if self._allow_nonfinite else self._nonfinite(logged)
        found = all_gather_json(self._comm, [logged, place, self.means.part(), nonfinite])
        self.window.parts, self._places, self._parts_of_means, nonfinite_by = map(list, zip(*found, strict=True))
        furthest: int = max(place[3] for place in self._places)
        if names := sorted({name for names in nonfinite_by for name in names}):
            scaler = "" if self._scalers else " If a GradScaler skips such steps, pass it: Session(scaler=scaler)."
            allow = "Session(allow_nonfinite=True) continues in any case."
            error = SessionError(
                "diverged",
                f"{', '.join(names)}: inf or nan was logged by step {furthest}; the last checkpoint is from before. "
                f"Lower the learning rate, or clip gradients.{scaler} {allow}",
            )
            error.raised_on_all_ranks = True
            raise error
        return furthest

    def record(self, position: Position, speed: Speed) -> Record:
        """Return the means of what was logged, and begin new ones."""
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
        """Return what a checkpoint says besides."""
        for look in self.before_saves:
            look()
        within = self.feed.batch  # elsewhere they are seeded anew
        own = self.generators.capture() if within else None
        has_left = self.feed.is_counting and bool(self.left_early)
        has_more = 0 < self.feed.batch < (self.feed.total or 0) and not has_left
        gathered = all_gather_json(
            self._comm, [own, self._given_generators.begun, self.pending.must_be_saved, has_more]
        )
        generators, given_generators, waits, within_pass = map(list, zip(*gathered, strict=True))
        return {
            **facts_of(self._seed),
            "world_size": self._comm.world.size,
            "feed": self.feed.facts(self._places),
            "window": self.window.parts,
            "means": self.means.facts(self._parts_of_means),
            "generators": generators,
            "given_generators": given_generators,
            "left_early": [*self.left_early.items()],
            "carries_gradients": self.pending.is_carried,
            **self._objects.collect(gradients_wait=any(waits), within_pass=all(within_pass)),
        }

    def capture(self, header: Header) -> Checkpoint:
        """Return a checkpoint of the objects."""
        return self._objects.capture(header)

    def started(self, parts: Mapping[str, float]) -> None:
        """Leave it to goodput.jsonl."""

    def write_results(self) -> None:
        """Leave that to the script."""

    def ended(self, status: Status) -> None:
        """Say how the attempt has ended."""
        if status.state == "done":
            log.info("done at step %d", status.step)
        else:
            log.info("stopped (%s) at step %d, saved; the same command continues", status.reason, status.step)
        log.info("time: %s", describe(read_goodput(self._goodput)))

    # Inside.

    def _nonfinite(self, logged: Sums) -> list[str]:
        """Return the names of what was inf or nan on this rank in steps that no GradScaler has skipped."""
        names, skipped = self.window.became_nonfinite(logged), self._scalers.have_skipped()
        return [] if skipped else names

    def _epochs_done(self, position: Position) -> float:
        """Return the epochs done, with the fraction of the one under way, where that is known."""
        feed = self.feed
        if feed.is_counting:
            return float(position.epoch)
        return position.epoch + (feed.batch / feed.total if feed.total else float(feed.number > 0))

    def _done(self, position: Position) -> float:
        """Return the part of all epochs, or else steps, that is done: from 0 to 1."""
        if self.total_epochs:
            return self._epochs_done(position) / self.total_epochs
        return self.feed.batch / max(1, self.total_steps)

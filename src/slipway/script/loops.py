"""The loops of a script with a session: its place in them, what counts as a step, and where the run may be saved."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from slipway.base.errors import SessionError, warn
from slipway.checks.early_use import EarlyUse
from slipway.checks.not_given import NotGiven, objects_of
from slipway.checks.numbering import warn_of_numbering
from slipway.checks.reading_ahead import ReadingAhead
from slipway.checks.stepless import MOST_BATCHES, Stepless
from slipway.checks.unsaved import UnknownOptimizers
from slipway.data.loading import Pass
from slipway.rng.seeding import Purpose
from slipway.run.run import Run
from slipway.script.adapter import Script
from slipway.state.steps import StepCounter

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Current:
    """The current pass over batches, or the iterations of ``steps``."""

    batches: Pass
    call: int = 0
    """Number of the call of ``steps``; 0 of ``batches``."""
    number: int = 0
    """Of the pass in its epoch."""
    is_over: bool = False
    """Whether it ended in an earlier attempt."""
    in_body: bool = False
    """Whether the script is in the body of its loop, or has left it there."""
    is_left: bool = False
    """Whether it is known to have left the loop: by ``break``, or by an error."""

    @property
    def is_running(self) -> bool:
        """Whether the script is in the body of its loop, as far as is known."""
        return self.in_body and not self.is_left


class Loops:
    """``epochs``, ``batches`` and ``steps`` of a session (see there), and the script's place in them."""

    def __init__(
        self,
        script: Script,
        run: Run,
        counter: StepCounter,
        *,
        optimizers: Iterable[str],
        not_given: NotGiven,
        early_use: EarlyUse,
        ahead: ReadingAhead,
    ) -> None:
        """Continue ``run`` where it was saved.

        Args:
            script: as the run sees it.
            run: of the session.
            counter: of the steps of the session's optimisers.
            optimizers: their names.
            not_given: looks for objects that the session lacks.
            early_use: of the session's models.
            ahead: sees whether the script reads ahead.
        """
        self._not_given, self._early_use, self._ahead = not_given, early_use, ahead
        self._script, self._run, self._counter = script, run, counter
        self._feed, self._generators, self._pending = script.feed, script.generators, script.pending
        self._stepless = Stepless(script.parameters, optimizers)
        self._pass: Current | None = None
        self._in_epoch = self._has_left_epoch = False
        self._calls = self._call_of_epochs = 0
        self._reached = 0
        """The epoch up to which the script has come in this attempt."""
        self._continues = False
        """Whether training continues: the script has reached the place at which the run was saved."""
        self._is_unsaved = False
        """Whether a body has been run since the last epoch's end."""
        self.have_ended = False
        """Whether nothing is trained any more."""

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._run.position.epoch

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the epochs that are left of ``total``; see Session."""
        self._require_no_outer("epochs")
        objects = objects_of(sys._getframe().f_back)  # noqa: SLF001
        self._feed.data.note_made(objects)
        self._not_given.find(objects)
        self._calls += 1
        return self._seeding_after(self._epochs(total, self._calls), self._calls)

    def batches(self, loader: Iterable[T]) -> Batches[T]:
        """Return the batches of ``loader`` that are left in this epoch; see Session."""
        if self._pass and self._pass.call and self._pass.is_running:
            _refuse_nesting("batches", "steps")
        self._settle()
        if not self._has_come:
            return Batches(iter(()), None)
        self._not_given.find_schedulers(objects_of(sys._getframe().f_back))  # noqa: SLF001
        feed = self._feed
        feed.end_steps()
        if feed.number >= self._script.lowest[0]:
            self._continue()
        found = feed.begin(loader, epoch=self.epoch)
        if not feed.is_resuming:  # with a changed number of ranks the epoch may begin anew
            self._continue()
        current = Current(found, number=feed.number, is_over=feed.is_resuming)
        self._begin_pass(current)
        return Batches(self._iterate(current), None if found.total is None else found.total - feed.batch)

    def steps(self, total: int) -> Iterator[int]:
        """Yield the iterations that are left of ``total``; see Session."""
        self._require_no_outer("steps")
        self._not_given.find(objects_of(sys._getframe().f_back))  # noqa: SLF001
        self._calls += 1
        return self._steps(total, self._calls)

    def end(self) -> None:
        """End the loops where the script has left them, and save what is not saved: nothing is trained any more.

        Raises:
            Stopped: if the ranks had agreed on that, and the script has caught it.
            SessionError: if no optimiser has stepped in the whole run, or it was not continued where it was saved.
        """
        self._settle()
        if self._in_epoch:
            self._leave_epoch()
        if not self._feed.is_counting:  # fewer steps than are done may be asked for
            self._require_resumed("the script")
        if self._run.step == 0 and (self.epoch or (self._feed.is_counting and self._is_unsaved)):
            self._stepless.refuse()
        self._run.save_rest(save=self._is_unsaved)
        self._generators.seed(Purpose.AFTER)
        self.have_ended = True

    def require_open(self) -> None:
        """Raise a SessionError if ``end`` was called."""
        if self.have_ended:
            raise SessionError(
                "after-load-best", "session.load_best() ends the training: it comes after all loops of the session."
            )

    def end_left_pass(self) -> None:
        """End the current pass if the script has left its loop by ``break``; all ranks call this."""
        if self._pass and self._pass.is_left:
            self._end_pass()

    # Epochs.

    def _seeding_after(self, epochs: Iterator[int], call: int) -> Iterator[int]:
        """Yield ``epochs``; the code that follows draws alike whether or not they were trained by this attempt."""
        try:
            yield from epochs
        finally:  # after a ``break`` too
            if not self.have_ended:
                self._generators.seed(Purpose.AFTER, call)

    def _epochs(self, total: int, call: int) -> Iterator[int]:
        self._script.total_epochs, self._call_of_epochs = total, call
        self._settle()
        self._feed.end_steps()
        left = self._script.left_early.get(call)
        if self._script.lowest == [0, 0] and self.epoch <= (total if left is None else left):
            self._continue()
        if left is not None:
            log.info("the script has left its epochs early, and so the run is done")
            self._reached = left
            return
        while self.epoch < total:
            self._generators.seed(Purpose.EPOCH, self.epoch)
            self._script.means.next_epoch()
            self._pending.begin_body()
            self._in_epoch, self._has_left_epoch, number = True, False, self._feed.number
            self._early_use.in_epoch = True
            self._script.begin_epoch(is_resumed=not self._continues)
            try:
                yield self.epoch
            except GeneratorExit:
                self._has_left_epoch = True
                raise
            self.require_open()
            is_without = self._pass is None and self._feed.number == number
            steps = self._end_epoch()
            if is_without and max(steps, default=0) > 1:
                # Between two of them gradients may have been left over, and are left over now.
                self._pending.wait = True
                warn(log, "epoch-without-batches", "the steps of an epoch without session.batches count as one")
            self._run.end_epoch(last=self.epoch >= total, blocked=self._is_blocked)
            self._is_unsaved = False
        self._reached = total

    def _end_epoch(self) -> list[int]:
        """Begin the next epoch; return the steps of each optimiser after the last pass of this one."""
        self._in_epoch = False
        self._end_pass()
        self._require_resumed("this epoch")
        steps = self._count_steps_outside()
        self._run.position = self._run.position.next_epoch()
        self._feed.next_epoch()
        return steps

    def _leave_epoch(self) -> None:
        """End an epoch, and the loop over epochs, that the script has left by ``break``."""
        self._end_epoch()
        self._reached = self._script.left_early[self._call_of_epochs] = self.epoch
        self._is_unsaved = True

    # Passes.

    def _steps(self, total: int, call: int) -> Iterator[int]:
        self._script.total_steps = total
        self._settle()
        if not self._has_come:
            return
        feed = self._feed
        found = feed.begin_steps(self._script.left_early.get(call, total))
        if not feed.is_resuming:
            self._continue()
        current = Current(found, call=call, is_over=feed.is_resuming)
        self._begin_pass(current)
        yield from self._iterate(current)

    def _begin_pass(self, current: Current) -> None:
        self._pass = current
        self._ahead.begin_pass(self._feed.batch)
        self._script.begin_pass()
        self._pending.begin_pass()
        self._run.start_clock()

    def _iterate(self, current: Current) -> Iterator[Any]:
        if self._pass is not current:
            self._refuse_pass()
        feed, found, place = self._feed, current.batches, (self.epoch, self._feed.number)
        if self._run.step == 0:
            self._stepless.begin()
        if not current.is_over:
            if feed.batch and not current.call:
                warn_of_numbering(sys._getframe(), done=feed.batch, total=found.total, epoch=self.epoch)  # noqa: SLF001
            self._script.resume_generators(*place, feed.batch)
        reseeds = found.reseeds
        for item in found.batches:
            if reseeds:
                self._generators.seed(Purpose.BODY, *place, feed.batch)
            self._pending.begin_body()
            current.in_body = True
            try:
                yield item
            except GeneratorExit:  # of a ``break``, or of an error in the body
                if current.in_body:  # and not ended before, as by the next pass, while a variable kept this iterator
                    current.is_left = True
                    self._end_body(current, is_last=True)
                    self._seed_after(current)
                raise
            if self._pass is not current:
                self._refuse_pass()
            self._end_body(current)
        self._end_pass()

    def _end_body(self, current: Current, *, is_last: bool = False) -> None:
        """Count a batch that is done, and a step if an optimiser has taken one since the last.

        Nothing is saved after the last one, also if ``break`` ends the loop: the end of the epoch is near.
        """
        current.in_body = False
        self._is_unsaved = True
        self._feed.batch += 1
        steps = self._counter.take()
        has_stepped = any(steps)
        self._pending.end_body(steps)
        if not has_stepped:
            self._ahead.note_without_step(self._feed.batch)
            if self._feed.batch == MOST_BATCHES and self._run.step == 0:
                self._stepless.check()
        elif is_last or self._feed.batch == self._feed.total:
            self._run.count()
        else:
            self._run.advance()

    def _end_pass(self) -> None:
        """Wait for ranks with more batches, and end the pass; after a ``break`` too.

        Raises:
            Stopped: if the ranks had agreed on that, and the script has caught it.
        """
        self._run.require_running()
        current = self._pass
        if current is None:
            return
        is_left = current.is_left
        if current.in_body:
            self._end_body(current, is_last=True)
            current.is_left = True
        if current.is_left and current.call:
            self._script.left_early[current.call] = self._feed.batch
        self._pass = None
        if self._run.step == 0:
            self._stepless.check()
        self._pending.end_pass()
        self._ahead.warn(self._feed.batch)
        if not current.call:
            self._feed.next_pass()
        if self._continues:
            self._run.join(blocked=self._is_blocked)
        self._script.end_pass()
        self._pending.begin_body()
        if not current.call:
            if self._feed.number >= self._script.lowest[0] and not self._script.lowest[1]:
                self._continue()
            if not is_left:
                self._seed_after(current)

    def _seed_after(self, current: Current) -> None:
        """Seed the generators where the loop over a pass ends, by ``break`` too: as where a resumed run skips it."""
        if not current.call:
            self._generators.seed(Purpose.VALIDATION, self.epoch, current.number + 1)

    def _settle(self) -> None:
        """End what the script has left before it begins another loop, or ends.

        Raises:
            Stopped: if the ranks had agreed on that, and the script has caught it.
        """
        self._end_pass()
        self._count_steps_outside()
        if self._in_epoch and self._has_left_epoch:
            self._leave_epoch()

    def _count_steps_outside(self) -> list[int]:
        """Count a step that was taken outside of a loop: of the gradients that one had left over.

        Steps that a resumed script takes before it reaches the place where it was saved do not count.
        """
        steps = self._counter.take()
        if any(steps) and (self._continues or not self._script.is_resumed):
            self._pending.step(steps)
            self._run.count()
        return steps

    # Where a resumed script comes to the place at which it was saved.

    @property
    def _has_come(self) -> bool:
        """Whether a loop outside of ``epochs`` belongs to the current epoch, and not to one before."""
        return self._in_epoch or self._reached >= self.epoch

    def _continue(self) -> None:
        """Restore the objects once more, and forget what the script has done to come here."""
        if self._continues:
            return
        self._continues = True
        self._early_use.end(within=self._script.lowest > [0, 0])
        if self._script.is_resumed:
            self._script.restore_again()
            self._pending.resume()

    def _require_resumed(self, where: str) -> None:
        if self._feed.is_resuming:
            raise SessionError(
                "batches-not-called", f"the run was saved within session.batches, which {where} has not called."
            )

    @property
    def _is_blocked(self) -> bool:
        """Whether to save and stop only after the next optimiser step; not if only others than the given ones step."""
        return self._pending.left_over and (self._run.step > 0 or not self._stepless.has_warned)

    # What is refused.

    def _require_no_outer(self, inner: str) -> None:
        if self._in_epoch and not self._has_left_epoch:
            _refuse_nesting(inner, "epochs")
        if self._pass and self._pass.is_running:
            _refuse_nesting(inner, "steps" if self._pass.call else "batches")

    def _refuse_pass(self) -> NoReturn:
        if self._pass:
            raise SessionError(
                "two-passes",
                "session.batches was called again before this pass has ended. To iterate two loaders side by side, "
                "call session.batches(zip(a, b)).",
            )
        raise SessionError(
            "batches-not-called", "there is one session.batches at a time, called in each epoch and iterated at once."
        )


def _refuse_nesting(inner: str, outer: str) -> NoReturn:
    raise SessionError(
        "nested-loops",
        f"session.{inner} within session.{outer}: a loop of k iterations within an epoch is session.batches(range(k)), "
        "and a loop within a batch or a step is a plain one.",
    )


class Batches(Generic[T]):
    """The batches that are left of a pass; iterate over them once."""

    def __init__(self, batches: Iterator[T], left: int | None) -> None:
        """Yield ``batches``, of which there are ``left``."""
        self._batches: Iterator[T] | None = batches
        self._left = left

    def __iter__(self) -> Iterator[T]:
        """Yield them, once. The iterator is not kept here, so that a ``break`` closes it.

        Raises:
            SessionError: if that has been done: another loop over it would train on nothing.
        """
        batches, self._batches = self._batches, None
        if batches is None:
            raise SessionError(
                "batches-not-called", "one result of session.batches is iterated twice: call it again for each loop."
            )
        return batches

    def __len__(self) -> int:
        """Return how many there are.

        Raises:
            TypeError: if the loader has no length.
        """
        if self._left is None:
            raise TypeError("this loader does not know its length")
        return self._left


@contextlib.contextmanager
def open_loops(script: Script, run: Run, objects: Mapping[str, Mapping[str, Any]]) -> Iterator[Loops]:
    """Count the steps of optimisers, and look at gradients and at what was not given, while a session's loops run.

    Args:
        script: as the run sees it.
        run: of the session.
        objects: of the session, by kind and name.
    """
    optimizers = objects["optimizer"]
    with contextlib.ExitStack() as stack:
        counter = StepCounter(optimizers.values(), script.pending.before_step)
        stack.callback(counter.close)
        counter.watch(objects["scaler"].values())
        stack.callback(script.pending.close)
        unknown = UnknownOptimizers(optimizers, counter, script.pending)
        stack.callback(unknown.close)
        script.before_saves.append(unknown.warn)
        not_given = NotGiven(objects)
        early_use = EarlyUse(objects["model"] if script.is_resumed else {})
        stack.callback(early_use.close)
        ahead = ReadingAhead()
        script.before_saves += [not_given.warn, lambda: ahead.warn(script.feed.batch)]
        loops = Loops(
            script, run, counter, optimizers=optimizers, not_given=not_given, early_use=early_use, ahead=ahead
        )
        stack.callback(setattr, loops, "have_ended", True)
        yield loops

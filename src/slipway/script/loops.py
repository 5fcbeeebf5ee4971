"""The loops of a session: the script's position in them, step counting, and the points at which the run is saved."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

import torch

from slipway.base.errors import SessionError, warn
from slipway.capture.data_parallel import needs_warm_up
from slipway.checks.batch_numbers import warn_of_numbering
from slipway.checks.early_use import EarlyUse
from slipway.checks.prefetch import PrefetchCheck
from slipway.checks.shared_forward import SharedForward
from slipway.checks.unsaved_objects import UnsavedObjects, objects_of
from slipway.checks.unsaved_optimizers import UnsavedOptimizers
from slipway.checks.weights_without_steps import CHECK_AFTER_BATCHES, StepCheck
from slipway.data.loading import Pass
from slipway.dist.communicator import Communicator
from slipway.rng.seeding import Purpose
from slipway.run.run import Run
from slipway.script.session_program import SessionProgram
from slipway.state.steps import StepCounter

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Current:
    """The current pass over batches, or the iterations of ``steps``."""

    batches: Pass
    call: int = 0
    """Number of the call of ``steps``; 0 for ``batches``."""
    number: int = 0
    """Number of the pass in its epoch."""
    is_over: bool = False
    """Whether the pass ended in an earlier attempt."""
    in_body: bool = False
    """Whether the script is in the body of its loop, or has left it there."""
    is_left: bool = False
    """Whether the script is known to have left the loop, by ``break`` or by an error."""

    @property
    def is_running(self) -> bool:
        """Whether the script is in the body of its loop, as far as is known."""
        return self.in_body and not self.is_left


class Loops:
    """Implementation of a session's ``epochs``, ``batches`` and ``steps``; tracks the script's position in them."""

    def __init__(
        self,
        script: SessionProgram,
        run: Run,
        counter: StepCounter,
        *,
        optimizers: Iterable[str],
        not_given: UnsavedObjects,
        early_use: EarlyUse,
        ahead: PrefetchCheck,
        shared_forward: SharedForward,
        without_warm_up: Iterable[str],
    ) -> None:
        """Continue ``run`` from its checkpoint.

        Args:
            script: the session's program (``SessionProgram``).
            run: the session's run.
            counter: counts the steps of the session's optimizers.
            optimizers: names of these optimizers.
            not_given: finds objects that the script has not passed to the session.
            early_use: detects use of the models before training continues.
            ahead: detects whether the script reads batches ahead.
            shared_forward: compares forward passes of sharded models between the ranks.
            without_warm_up: names of the models that need ``Session.warm_up``.
        """
        self._not_given, self._early_use, self._ahead = not_given, early_use, ahead
        self._script, self._run, self._counter = script, run, counter
        self._feed, self._generators, self._pending = script.feed, script.generators, script.pending
        self.shared_forward = shared_forward
        self._stepless = StepCheck(script.parameters, optimizers)
        self._pass: Current | None = None
        self._in_epoch = self._has_left_epoch = False
        self._calls = self._call_of_epochs = 0
        self._reached = 0
        """The epoch that the script has reached in this attempt."""
        self._continues = False
        """Whether training continues, because the script has reached the position at which the run was saved."""
        self._is_unsaved = False
        """Whether a loop body has run since the end of the last epoch."""
        self.have_ended = False
        """Whether the session's training has ended."""
        self.without_warm_up = [*without_warm_up]
        """Models that need ``Session.warm_up`` and have not had it, by name."""

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0."""
        return self._run.position.epoch

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the remaining epochs of ``total``; see Session."""
        self._require_no_outer("epochs")
        objects = objects_of(sys._getframe().f_back)  # noqa: SLF001
        self._feed.data.digest_before_epochs(objects)
        self._not_given.find(objects)
        self._calls += 1
        return self._seed_after_epochs(self._epochs(total, self._calls), self._calls)

    def batches(self, loader: Iterable[T], device: torch.device | None) -> Batches[T]:
        """Return the remaining batches of ``loader`` in this epoch; see Session."""
        if self._pass and self._pass.call and self._pass.is_running:
            _raise_nested("batches", "steps")
        self._settle()
        self.shared_forward.agree("session.batches")
        if not self._is_in_current_epoch:
            return Batches(iter(()), None)
        self._not_given.find_schedulers(objects_of(sys._getframe().f_back))  # noqa: SLF001
        feed = self._feed
        feed.end_steps()
        if feed.number >= self._script.lowest[0]:
            self._continue()
        is_resumed = feed.is_resuming
        found = feed.begin(loader, epoch=self.epoch, device=device)
        if not feed.is_resuming:  # the epoch may be repeated after the number of ranks has changed
            self._continue()
        current = Current(found, number=feed.number, is_over=feed.is_resuming)
        self._begin_pass(current, None if is_resumed else loader)
        return Batches(self._iterate(current), None if found.total is None else found.total - feed.batch)

    def steps(self, total: int) -> Iterator[int]:
        """Yield the remaining iterations of ``total``; see Session."""
        self._require_no_outer("steps")
        self._not_given.find(objects_of(sys._getframe().f_back))  # noqa: SLF001
        self._calls += 1
        return self._steps(total, self._calls)

    def end(self) -> None:
        """End the loops that the script has left, and save unsaved progress; the training has then ended.

        Raises:
            Stopped: if the ranks had agreed to stop and the script caught the exception.
            SessionError: if no optimizer has stepped in the whole run, or if the script has not continued the run from
                its checkpoint.
        """
        self._settle()
        if self._in_epoch:
            self._leave_epoch()
        self.shared_forward.agree("the end of its training")
        if not self._feed.is_counting:  # steps(total) may request fewer steps than are done
            self._require_resumed("the script")
        if self._run.step == 0 and (self.epoch or (self._feed.is_counting and self._is_unsaved)):
            self._stepless.refuse()
        self._script.is_ending = True
        self._run.save_unsaved(save=self._is_unsaved)
        self._generators.seed(Purpose.AFTER)
        self.have_ended = True

    def require_open(self) -> None:
        """Raise a SessionError if ``end`` was called."""
        if self.have_ended:
            raise SessionError(
                "after-load-best", "session.load_best() ends the training: call it after all loops of the session."
            )

    def end_abandoned_pass(self) -> None:
        """End the current pass if the script has left its loop by ``break``; all ranks must call this."""
        if self._pass and self._pass.is_left:
            self._end_pass()

    # Epochs.

    def _seed_after_epochs(self, epochs: Iterator[int], call: int) -> Iterator[int]:
        """Yield ``epochs``, then seed, so that later code draws the same numbers whichever attempt trained them."""
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
        if self._script.lowest == (0, 0) and self.epoch <= (total if left is None else left):
            self._continue()
        if left is not None:
            log.info("the script left its epochs early in an earlier attempt, so the run is done")
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
                # Gradients may be left over between two of these steps, and may be left over now.
                self._pending.wait = True
                warn(log, "epoch-without-batches", "all steps of an epoch without session.batches count as one step")
            self._script.is_ending = self.epoch >= total
            self._run.end_epoch(last=self.epoch >= total, blocked=self._is_blocked)
            self._is_unsaved = False
        self._reached = total

    def _end_epoch(self) -> list[int]:
        """Begin the next epoch; return each optimizer's steps after the last pass of this epoch."""
        self._in_epoch = False
        self._end_pass()
        self.shared_forward.agree("the end of the epoch")
        self._require_resumed("this epoch")
        steps = self._count_steps_outside()
        self._run.position = self._run.position.next_epoch()
        self._feed.next_epoch()
        return steps

    def _leave_epoch(self) -> None:
        """End an epoch and the loop over epochs after the script has left it by ``break``."""
        self._end_epoch()
        self._reached = self._script.left_early[self._call_of_epochs] = self.epoch
        self._is_unsaved = True

    # Passes.

    def _steps(self, total: int, call: int) -> Iterator[int]:
        self._script.total_steps = total
        self._settle()
        self.shared_forward.agree("session.steps")
        if not self._is_in_current_epoch:
            return
        feed = self._feed
        found = feed.begin_steps(self._script.left_early.get(call, total))
        if not feed.is_resuming:
            self._continue()
        current = Current(found, call=call, is_over=feed.is_resuming)
        self._begin_pass(current)
        yield from self._iterate(current)

    def _begin_pass(self, current: Current, loader: object = None) -> None:
        if not current.is_over:
            self._script.require_gradients()
        self._pass = current
        self.shared_forward.within_pass = True
        self._ahead.begin_pass(self._feed.batch)
        self._script.begin_pass(loader)
        self._pending.begin_pass()
        self._run.start_clock()

    def _iterate(self, current: Current) -> Iterator[Any]:
        if self._pass is not current:
            self._raise_second_pass()
        feed, found, position = self._feed, current.batches, (self.epoch, self._feed.number)
        if self._run.step == 0:
            self._stepless.begin()
        if not current.is_over:
            if feed.batch and not current.call:
                warn_of_numbering(sys._getframe(), done=feed.batch, total=found.total, epoch=self.epoch)  # noqa: SLF001
            self._script.resume_generators(*position, feed.batch)
        reseeds = found.reseeds
        for item in found.batches:
            if reseeds:
                self._generators.seed(Purpose.BODY, *position, feed.batch)
            self._pending.begin_body()
            current.in_body = True
            try:
                yield item
            except GeneratorExit:  # from a ``break`` or an error in the body
                if current.in_body:  # else already ended, for instance by the next pass while a variable kept this one
                    current.is_left = True
                    self._end_body(current, is_last=True)
                    self._seed_after(current)
                raise
            if self._pass is not current:
                self._raise_second_pass()
            self._end_body(current)
        self._end_pass()

    def _end_body(self, current: Current, *, is_last: bool = False) -> None:
        """Count a completed batch, and a step if an optimizer has stepped since the last batch.

        The run is not saved after the last batch, nor after a ``break``, because the end of the epoch is near.
        """
        current.in_body = False
        self._is_unsaved = True
        self._feed.batch += 1
        steps = self._counter.take()
        has_stepped = any(steps)
        self._pending.end_body(steps)
        if not has_stepped:
            self._ahead.note_without_step(self._feed.batch)
            if self._feed.batch == CHECK_AFTER_BATCHES and self._run.step == 0:
                self._stepless.check()
        elif is_last or self._feed.batch == self._feed.total:
            self._run.count()
        else:
            self._run.advance()

    def _end_pass(self) -> None:
        """Wait for ranks with more batches, and end the pass; also called after a ``break``.

        Raises:
            Stopped: if the ranks had agreed to stop and the script caught the exception.
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
            self._run.wait_for_other_ranks(blocked=self._is_blocked)
        self._script.end_pass()
        self.shared_forward.within_pass = False
        self._pending.begin_body()
        if not current.call:
            if self._feed.number >= self._script.lowest[0] and not self._script.lowest[1]:
                self._continue()
            if not is_left:
                self._seed_after(current)

    def _seed_after(self, current: Current) -> None:
        """Seed the generators after the loop over a pass, also after ``break``, as a resumed run does that skips it."""
        if not current.call:
            self._generators.seed(Purpose.VALIDATION, self.epoch, current.number + 1)

    def _settle(self) -> None:
        """End loops that the script has left, before it begins another loop or ends.

        Raises:
            Stopped: if the ranks had agreed to stop and the script caught the exception.
        """
        self._end_pass()
        self._count_steps_outside()
        if self._in_epoch and self._has_left_epoch:
            self._leave_epoch()

    def _count_steps_outside(self) -> list[int]:
        """Count a step taken outside a loop, with gradients left over from a loop.

        Steps that a resumed script takes before it reaches its saved position do not count.
        """
        steps = self._counter.take()
        if any(steps) and (self._continues or not self._script.is_resumed):
            self._pending.step(steps)
            self._run.count()
        return steps

    # Position of a resumed script relative to its saved position.

    @property
    def _is_in_current_epoch(self) -> bool:
        """Whether a loop outside ``epochs`` belongs to the current epoch, and not to an earlier one."""
        return self._in_epoch or self._reached >= self.epoch

    def _continue(self) -> None:
        """Restore the objects a second time, to undo changes that the script made on the way to this position."""
        if self._continues:
            return
        self._continues = True
        for name in self.without_warm_up:
            log.info("%s: use session.warm_up or find_unused_parameters to resume bitwise identically", name)
        self._early_use.end(within=self._script.lowest > (0, 0))
        if self._script.is_resumed:
            self._script.restore_again()
            self._pending.resume()

    def _require_resumed(self, where: str) -> None:
        if self._feed.is_resuming:
            raise SessionError(
                "batches-not-called", f"the run was saved within session.batches, but {where} has not called it."
            )

    @property
    def _is_blocked(self) -> bool:
        """Whether to save and stop only after the next optimizer step.

        False if only optimizers step that the session does not have.
        """
        return self._pending.left_over and (self._run.step > 0 or not self._stepless.has_warned)

    # Errors.

    def _require_no_outer(self, inner: str) -> None:
        if self._in_epoch and not self._has_left_epoch:
            _raise_nested(inner, "epochs")
        if self._pass and self._pass.is_running:
            _raise_nested(inner, "steps" if self._pass.call else "batches")

    def _raise_second_pass(self) -> NoReturn:
        if self._pass:
            raise SessionError(
                "two-passes",
                "session.batches was called again before this pass ended. To iterate over two loaders together, "
                "call session.batches(zip(a, b)).",
            )
        raise SessionError(
            "batches-not-called", "call session.batches in each epoch and iterate over its result before the next call."
        )


def _raise_nested(inner: str, outer: str) -> NoReturn:
    raise SessionError(
        "nested-loops",
        f"session.{inner} was called within session.{outer}. For k iterations within an epoch, use "
        "session.batches(range(k)); within a batch or a step, use a plain loop.",
    )


class Batches(Generic[T]):
    """The remaining batches of a pass, which can be iterated once."""

    def __init__(self, batches: Iterator[T], left: int | None) -> None:
        """Wrap ``batches``; ``left`` is their number, None if unknown."""
        self._batches: Iterator[T] | None = batches
        self._left = left

    def __iter__(self) -> Iterator[T]:
        """Return the iterator, once. The object keeps no reference to it, so a ``break`` closes it.

        Raises:
            SessionError: at the second call: another loop would train on no batches.
        """
        batches, self._batches = self._batches, None
        if batches is None:
            raise SessionError(
                "batches-not-called", "a result of session.batches was iterated twice: call it again for each loop."
            )
        return batches

    def __len__(self) -> int:
        """Return the number of remaining batches.

        Raises:
            TypeError: if the loader has no length.
        """
        if self._left is None:
            raise TypeError("this loader has no length")
        return self._left


@contextlib.contextmanager
def open_loops(
    script: SessionProgram, run: Run, objects: Mapping[str, Mapping[str, Any]], comm: Communicator
) -> Iterator[Loops]:
    """Yield the session's loops, with step counting, gradient tracking and usage checks active until they close.

    Args:
        script: the session's program (``SessionProgram``).
        run: the session's run.
        objects: the session's objects, by kind and name.
        comm: communicator of this rank.
    """
    optimizers = objects["optimizer"]
    with contextlib.ExitStack() as stack:
        counter = StepCounter(optimizers.values(), script.before_step)
        stack.callback(counter.close)
        counter.watch(objects["scaler"].values())
        stack.callback(script.pending.close)
        unknown = UnsavedOptimizers(optimizers, counter, script.pending)
        stack.callback(unknown.close)
        script.save_hooks.append(unknown.warn)
        not_given = UnsavedObjects(objects)
        early_use = EarlyUse(objects["model"] if script.is_resumed else {})
        stack.callback(early_use.close)
        ahead = PrefetchCheck()
        shared_forward = SharedForward(objects["model"].values(), comm)
        stack.callback(shared_forward.close)
        script.save_hooks += [not_given.warn, lambda: ahead.warn(script.feed.batch)]
        loops = Loops(
            script,
            run,
            counter,
            optimizers=optimizers,
            not_given=not_given,
            early_use=early_use,
            ahead=ahead,
            shared_forward=shared_forward,
            without_warm_up=[name for name, model in objects["model"].items() if needs_warm_up(model, comm.world.size)],
        )
        stack.callback(setattr, loops, "have_ended", True)
        yield loops

"""The loops of a script with a session: its place in them, what counts as a step, and where the run may be saved."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NoReturn, TypeVar

from slipway.errors import SessionError, warn
from slipway.loading import Pass
from slipway.numbering import warn_of_numbering
from slipway.run import Run
from slipway.script import Script
from slipway.seeding import Purpose
from slipway.stepless import MOST_BATCHES, Stepless
from slipway.steps import StepCounter

T = TypeVar("T")

log = logging.getLogger(__name__)


class Loops:
    """``epochs``, ``batches`` and ``steps`` of a session (see there), and the script's place in them."""

    def __init__(self, script: Script, run: Run, counter: StepCounter, *, optimizers: Iterable[str]) -> None:
        """Continue ``run`` where it was saved.

        Args:
            script: as the run sees it.
            run: of the session.
            counter: of the steps of the session's optimisers.
            optimizers: their names.
        """
        self._script, self._run, self._counter = script, run, counter
        self._feed, self._generators = script.feed, script.generators
        self._stepless = Stepless(script.parameters, optimizers)
        self._pass: Pass | None = None
        self._in_epoch = self._in_body = self._has_left = self._blocked = False
        self._counted = self._counted_before = 0

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self._run.position.epoch

    def epochs(self, total: int) -> Iterator[int]:
        """Yield the epochs that are left of ``total``; see Session."""
        self._script.total_epochs = total
        if self._script.was_left_early:
            log.info("the script has left its epochs early, and so the run is done")
            return
        self._feed.data.note_made(sys._getframe().f_back)  # noqa: SLF001
        while self.epoch < total:
            self._generators.seed(Purpose.EPOCH, self.epoch)
            self._script.means.next_epoch()
            self._in_epoch, before = True, self._counter.count
            yield self.epoch
            self._in_epoch = False
            if self._counter.count - before > 1 and self._feed.number == 0 and self._pass is None:
                warn(log, "epoch-without-batches", "the steps of an epoch without session.batches count as one")
            self._end_pass()
            if self._feed.is_resuming:
                raise SessionError(
                    "batches-not-called", "the run was saved within session.batches, which this epoch has not called."
                )
            self._count_step_outside()
            self._run.position = self._run.position.next_epoch()
            self._feed.next_epoch()
            self._run.end_epoch(last=self.epoch >= total, blocked=self._blocked)

    def batches(self, loader: Iterable[T]) -> Batches[T]:
        """Return the batches of ``loader`` that are left in this epoch; see Session."""
        self._end_pass()
        self._count_step_outside()
        self._counted_before = self._counted
        found = self._pass = self._feed.begin(loader, epoch=self.epoch)
        self._script.begin_pass()
        self._run.start_clock()
        return Batches(self._iterate(found), None if found.total is None else found.total - self._feed.batch)

    def steps(self, total: int) -> Iterator[int]:
        """Yield the steps that are left of ``total``; see Session."""
        self._script.total_steps = total
        self._script.means.begin(self._feed.number, resumed=True)
        self._run.start_clock()
        self._script.resume_generators(self.epoch, self._run.step)
        while self._run.step < total:
            yield self._run.step
            self._has_stepped()
            self._run.advance()

    def end(self) -> None:
        """End the run where the script has left its loops, and save what is not saved.

        Raises:
            Stopped: if the ranks had agreed on that, and the script has caught it.
            SessionError: if no optimiser has stepped in the whole run.
        """
        self._end_pass()
        self._count_step_outside()
        if self._run.stopped:
            raise self._run.stopped
        if self._run.step == 0 and (self.epoch or self._in_epoch):
            self._stepless.refuse()
        self._script.left_early = self._in_epoch
        self._run.conclude(save=self._in_epoch)

    def end_left_pass(self) -> None:
        """End the pass under way if the script has left its loop by ``break``; all ranks call this."""
        if self._has_left:
            self._end_pass()

    # Inside.

    def _iterate(self, found: Pass) -> Iterator[Any]:
        if self._pass is not found:
            self._refuse_pass()
        place = self.epoch, self._feed.number
        if self._run.step == 0:
            self._stepless.begin()
        if self._feed.batch:
            warn_of_numbering(sys._getframe(), done=self._feed.batch, total=found.total, epoch=self.epoch)  # noqa: SLF001
        self._script.resume_generators(*place, self._feed.batch)
        reseeds = found.reseeds
        for item in found.batches:
            if reseeds:
                self._generators.seed(Purpose.BODY, *place, self._feed.batch)
            self._in_body = True
            try:
                yield item
            except GeneratorExit:  # of a ``break``, or of an error in the body
                self._has_left = True
                raise
            if self._pass is not found:
                self._refuse_pass()
            self._end_body()
        self._end_pass()

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

    def _end_body(self) -> None:
        """Count a batch that is done, and a step if an optimiser has taken one since the last."""
        self._in_body = False
        self._feed.batch += 1
        before, self._counted = self._counted, self._counter.count
        self._blocked = self._counted == before  # gradients wait for more
        if self._blocked and self._feed.batch == MOST_BATCHES and self._run.step == 0:
            self._stepless.check()
        if not self._blocked:
            # Nothing is saved behind the last batch: the end of the epoch is near.
            (self._run.count if self._feed.batch == self._feed.total else self._run.advance)()

    def _has_stepped(self) -> bool:
        """Return whether an optimiser has stepped since the last call."""
        before, self._counted = self._counted, self._counter.count
        return self._counted > before

    def _count_step_outside(self) -> None:
        """Count a step that was taken behind a loop: of the gradients that it had left over."""
        if self._has_stepped():
            self._blocked = False
            self._run.count()

    def _end_pass(self) -> None:
        """Wait for ranks with more batches, and go on to what follows; after a ``break`` too."""
        if self._pass is None:
            return
        if self._in_body:
            self._end_body()
        self._pass, self._has_left = None, False
        if self._run.step == 0:
            self._stepless.check()
        self._blocked &= self._counter.count > self._counted_before  # not after a validation
        self._feed.next_pass()
        self._run.join(blocked=self._blocked)
        self._script.end_pass()
        self._generators.seed(Purpose.VALIDATION, self.epoch, self._feed.number)


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
            TypeError: if nobody knows.
        """
        if self._left is None:
            raise TypeError("this loader does not know its length")
        return self._left


@contextlib.contextmanager
def counted_loops(
    script: Script, run: Run, *, optimizers: Mapping[str, Any], scalers: Mapping[str, Any]
) -> Iterator[Loops]:
    """Count the steps of ``optimizers`` and ``scalers``, by name, while the loops of a session run."""
    counter = StepCounter()
    try:
        counter.watch(optimizers.values(), "step")
        counter.watch(scalers.values(), "update")
        yield Loops(script, run, counter, optimizers=optimizers)
    finally:
        counter.close()

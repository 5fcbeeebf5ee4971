"""Whether all ranks stop, and why: decided by a sum, in the one all-reduce that carries the caller's numbers too.

``Schedule`` has the steps at which they agree, write records and save checkpoints: the same ones on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipway.base.stop import Reason, StopRequest
from slipway.dist.collectives import all_gather_json, sum_numbers
from slipway.dist.communicator import Communicator

VOTE_INTERVAL = 0.5
"""Seconds between two agreements, roughly: the ranks count steps, so that all agree at the same."""
MOST_STEPS = 1000
"""Steps between two agreements, at most."""


class Pace:
    """After how many steps the ranks agree again."""

    def __init__(self) -> None:
        """Agree after each step, until it is known how long one takes."""
        self.steps = 1

    def observe(self, steps: int, seconds: float) -> None:
        """Agree as often as fits ``steps`` that took ``seconds``, the same numbers on every rank.

        The interval grows slowly and shrinks at once: a few fast steps say little of those to come.
        """
        fitting = int(steps * VOTE_INTERVAL / max(seconds, 1e-9))
        self.steps = max(1, min(MOST_STEPS, 2 * self.steps, fitting))


class Agreement:
    """Asks every rank at the same step, and gives every rank the same answer (docs/decisions/0002)."""

    def __init__(self, comm: Communicator, request: StopRequest, stop_file: Callable[[], Reason] | None = None) -> None:
        """Ask ``request`` on each rank, and ``stop_file`` where there is one: on rank 0."""
        self._comm = comm
        self._request = request
        self._stop_file = stop_file

    def inherited(self) -> Reason:
        """Return the reason to stop that earlier sessions of these processes have handed on, the largest of any rank.

        What comes while a session opens is not among them: it stops after a step, so that a job that is requeued at its
        time limit has gained one.
        """
        return Reason(max(all_gather_json(self._comm, self._request.inherited)))

    def agree(self, votes: Sequence[float]) -> tuple[Reason, list[float]]:
        """Return the reason to stop, the largest that any rank gives, and the totals of ``votes`` over all ranks.

        Every rank calls this at the same step, with as many numbers.
        """
        asked = self._request.reason
        if self._stop_file:
            asked = max(asked, self._stop_file())
        asked_by = [0.0] * len(Reason)
        asked_by[asked] = 1.0
        totals = sum_numbers(self._comm, [*asked_by, *votes])
        largest = max(number for number, count in enumerate(totals[: len(Reason)]) if count)
        return Reason(largest), totals[len(Reason) :]


class Schedule:
    """The next step at which something is due."""

    def __init__(self, *, log_interval: int, checkpoint_interval: int | None) -> None:
        """Plan records and checkpoints at multiples of these numbers of steps."""
        self._log_interval = log_interval
        self._checkpoint_interval = checkpoint_interval
        self.pace = Pace()
        """Of the agreements."""
        self.next_step = 0
        """The step after which something is due."""

    def plan(self, step: int) -> None:
        """Look forward from ``step``."""
        due = [step + self.pace.steps, _next_multiple(step, self._log_interval)]
        if self._checkpoint_interval:
            due.append(_next_multiple(step, self._checkpoint_interval))
        self.next_step = min(due)

    def log_due(self, step: int) -> bool:
        """Whether a record of the training loss belongs to ``step``."""
        return step % self._log_interval == 0

    def checkpoint_due(self, step: int) -> bool:
        """Whether a checkpoint within an epoch belongs to ``step``."""
        return bool(self._checkpoint_interval) and step % (self._checkpoint_interval or 1) == 0


def _next_multiple(step: int, interval: int) -> int:
    return (step // interval + 1) * interval

"""Vote of the ranks on whether to stop, and the schedule of votes, records and checkpoints.

One all-reduce carries the votes and the caller's numbers. ``Schedule`` holds the steps at which the ranks vote, write
records and save checkpoints. These steps are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slipway.base.stop import Reason, StopRequest
from slipway.dist.collectives import all_gather_json, sum_numbers
from slipway.dist.communicator import Communicator

VOTE_INTERVAL = 0.5
"""Approximate seconds between two votes. The ranks count steps, so that all vote after the same step."""
MAX_STEPS = 1000
"""Maximum number of steps between two votes."""


class VoteInterval:
    """Number of steps between two votes, adapted to the duration of a step."""

    def __init__(self) -> None:
        """Vote after each step until the duration of a step is known."""
        self.steps = 1

    def observe(self, steps: int, seconds: float) -> None:
        """Adapt the interval to ``steps`` that took ``seconds``; both must be the same on every rank.

        The interval at most doubles per call but shrinks immediately: a few fast steps do not predict the next ones.
        """
        fitting = int(steps * VOTE_INTERVAL / max(seconds, 1e-9))
        self.steps = max(1, min(MAX_STEPS, 2 * self.steps, fitting))


class Agreement:
    """Vote in which all ranks decide at the same step whether to stop (docs/decisions/0002)."""

    def __init__(self, comm: Communicator, request: StopRequest, stop_file: Callable[[], Reason] | None) -> None:
        """Vote according to ``request`` on each rank, and to ``stop_file`` on rank 0, which alone has one."""
        self._comm = comm
        self._request = request
        self._stop_file = stop_file

    def inherited(self) -> Reason:
        """Return the reason to stop that earlier sessions of these processes left, the largest of all ranks.

        A request that arrives while a session opens does not count here. It stops the run after one step, so that a job
        that is requeued at its time limit makes progress.
        """
        return Reason(max(all_gather_json(self._comm, self._request.inherited)))

    def agree(self, votes: Sequence[float]) -> tuple[Reason, list[float]]:
        """Return the reason to stop, the largest of all ranks, and the sums of ``votes`` over all ranks.

        Every rank must call this at the same step with the same number of votes.
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
    """The next step after which a vote, a record or a checkpoint is due."""

    def __init__(self, *, log_interval: int, checkpoint_interval: int | None) -> None:
        """Schedule records and checkpoints at multiples of these intervals, in steps."""
        self._log_interval = log_interval
        self._checkpoint_interval = checkpoint_interval
        self.pace = VoteInterval()
        """Interval of the votes."""
        self.next_step = 0
        """The step after which something is due."""

    def plan(self, step: int) -> None:
        """Set ``next_step`` to the first step after ``step`` at which something is due."""
        due = [step + self.pace.steps, _next_multiple(step, self._log_interval)]
        if self._checkpoint_interval:
            due.append(_next_multiple(step, self._checkpoint_interval))
        self.next_step = min(due)

    def log_due(self, step: int) -> bool:
        """Return whether a record of the training loss is due at ``step``."""
        return step % self._log_interval == 0

    def checkpoint_due(self, step: int) -> bool:
        """Return whether a checkpoint within an epoch is due at ``step``."""
        return bool(self._checkpoint_interval and step % self._checkpoint_interval == 0)


def _next_multiple(step: int, interval: int) -> int:
    return (step // interval + 1) * interval

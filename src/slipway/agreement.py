"""Whether all ranks stop, and why: decided by a sum, in the one all-reduce that carries the caller's numbers too."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from slipway.communicator import Communicator
from slipway.stop import Reason, StopRequest

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

    @property
    def is_asked(self) -> bool:
        """Whether a signal has asked this rank to stop."""
        return bool(self._request.reason)

    def agree(self, sums: Tensor) -> tuple[Reason, list[float]]:
        """Return the reason to stop, the largest that any rank gives, and the totals of ``sums`` over all ranks.

        Args:
            sums: float64 [n], on the rank's device; every rank calls this at the same step.
        """
        asked = self._request.reason
        if self._stop_file:
            asked = max(asked, self._stop_file())
        votes = sums.new_tensor([float(asked == reason) for reason in Reason])
        found = self._comm.all_reduce_sum(torch.cat([sums, votes])).tolist()
        totals, asked_by = found[: len(sums)], found[len(sums) :]
        return max(reason for reason, count in zip(Reason, asked_by, strict=True) if count), totals

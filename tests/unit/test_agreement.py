"""Training position, the ranks' votes, and what they agree on."""

import pytest

from ranks import OneOf, on_ranks
from slipway.base.environment import World
from slipway.base.stop import Reason, StopRequest
from slipway.checkpoint.header import Position
from slipway.run.agreement import Agreement, Schedule, VoteInterval


class TestPosition:
    def test_position_adds_observations_and_resets_bad_samples_each_epoch(self):
        position = Position(step=3, samples=9).with_added(bad=2, seconds=1.5).with_added(bad=1, seconds=0.5)
        assert position == Position(step=3, samples=9, bad=3, elapsed=2.0)
        assert position.next_epoch() == Position(step=3, epoch=1, elapsed=2.0)


def requesting(reason):
    request = StopRequest()
    request.reason = reason
    return request


class TestAgreement:
    @pytest.mark.parametrize("asked", [[0, 0, 0], [0, 1, 0], [0, 3, 1], [2, 0, 1], [3, 3, 3]])
    def test_ranks_agree_on_largest_stop_reason_and_sum_values(self, asked):
        def action(ranks):
            rank = ranks.world.rank
            agreement = Agreement(ranks, requesting(Reason(asked[rank])), lambda: Reason.NONE)
            return agreement.agree([rank, 0.5])

        assert on_ranks(3, action) == [(Reason(max(asked)), [3.0, 1.5])] * 3

    def test_stop_file_read_by_rank_0_stops_all_ranks(self):
        def action(comm):
            stop_file = (lambda: Reason.USER) if comm.world.is_root else None
            return Agreement(comm, StopRequest(), stop_file).agree([])[0]

        assert on_ranks(3, action) == [Reason.USER] * 3

    def test_vote_takes_one_all_reduce(self):
        calls = []

        class Counting(OneOf):
            def all_reduce_sum(self, values):
                calls.append(values.shape)
                return values

        ranks = Counting(World(1, 2))
        Agreement(ranks, StopRequest(), lambda: Reason.NONE).agree([0, 0, 0])
        assert calls == [(3 + len(Reason),)]


def observe(pace, steps, seconds):
    """Feed ``pace`` the same observation until it settles."""
    for _ in range(12):
        pace.observe(steps, seconds)


class TestSchedule:
    def steps(self, schedule, until):
        """Return the steps up to ``until`` at which an action is due."""
        found, step = [], 0
        schedule.plan(0)
        while (step := schedule.next_step) <= until:
            found.append(step)
            schedule.plan(step)
        return found

    def test_ranks_vote_after_each_step_at_first(self):
        assert self.steps(Schedule(log_interval=10, checkpoint_interval=None), 4) == [1, 2, 3, 4]

    def test_log_and_checkpoint_steps_are_independent_of_vote_interval(self):
        schedule = Schedule(log_interval=10, checkpoint_interval=7)
        observe(schedule.pace, steps=100, seconds=0.001)
        assert self.steps(schedule, 30) == [7, 10, 14, 20, 21, 28, 30]
        assert [schedule.log_due(step) for step in (7, 10, 20)] == [False, True, True]
        assert [schedule.checkpoint_due(step) for step in (7, 10, 70)] == [True, False, True]
        assert not Schedule(log_interval=1, checkpoint_interval=None).checkpoint_due(7)

    @pytest.mark.parametrize(
        ("steps", "seconds", "interval"), [(10, 1.0, 5), (1, 60.0, 1), (1000, 0.0, 1000), (10**9, 1.0, 1000)]
    )
    def test_vote_interval_follows_step_time(self, steps, seconds, interval):
        schedule = Schedule(log_interval=10**9, checkpoint_interval=None)
        observe(schedule.pace, steps, seconds)
        schedule.plan(100)
        assert schedule.next_step == 100 + interval

    def test_vote_interval_doubles_gradually_and_shrinks_immediately(self):
        pace = VoteInterval()
        intervals = []
        for steps, seconds in [(1, 0.005), (1, 0.005), (2, 0.01), (4, 0.02), (8, 16.0), (1, 2.0)]:
            pace.observe(steps, seconds)
            intervals.append(pace.steps)
        assert intervals == [2, 4, 8, 16, 1, 1]

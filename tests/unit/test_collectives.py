"""Collectives: rank 0's decisions, and its failures, reach every rank."""

import errno
import os
import threading
import time

import pytest

from ranks import on_ranks
from slipway.base.errors import FolderInUseError, SlipwayError
from slipway.dist.collectives import all_gather_json, broadcast_json, run_on_root
from trainer.config.errors import ConfigError

IN_USE = FolderInUseError(folder="a", pid=1, host="b", job="none", since="noon")


@pytest.mark.parametrize("value", [None, 0, "", "é", [1.5, None], {"a": {"b": [True]}}, "x" * 100_000])
def test_broadcast_json_returns_value_of_rank_0_on_all_ranks(value):
    found = on_ranks(3, lambda comm: broadcast_json(comm, value if comm.world.rank == 0 else "another"))
    assert found == [value] * 3


def test_all_gather_json_returns_values_in_rank_order():
    values = [{"rank": 0}, "a longer text than the others", None, 3.25]
    assert on_ranks(4, lambda comm: all_gather_json(comm, values[comm.world.rank])) == [values] * 4


def test_run_on_root_runs_and_returns_only_on_rank_0():
    ran = []

    def action(comm):
        return run_on_root(comm, lambda: ran.append(comm.world.rank) or "result")

    assert on_ranks(3, action) == ["result", None, None]
    assert ran == [0]


def test_other_ranks_wait_until_action_on_root_has_ended():
    ended = threading.Event()

    def slow():
        time.sleep(0.5)
        ended.set()

    def action(comm):
        run_on_root(comm, slow)
        return ended.is_set()

    assert on_ranks(3, action) == [True] * 3


@pytest.mark.parametrize(
    ("error", "slug", "code", "retryable", "classes"),
    [
        (IN_USE, "folder-in-use", 78, False, [FolderInUseError] * 3),
        (ConfigError("unknown-name", "model 'x'"), "unknown-name", 78, False, [ConfigError] + [SlipwayError] * 2),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "disk-full", 1, False, [SlipwayError] * 3),
        (OSError(errno.EIO, os.strerror(errno.EIO)), "unexpected-error", 1, True, [SlipwayError] * 3),
    ],
    ids=repr,
)
def test_run_on_root_raises_error_on_every_rank(error, slug, code, retryable, classes):
    def fail():
        raise error

    def action(comm):
        with pytest.raises(SlipwayError) as caught:
            run_on_root(comm, fail)
        return caught.value

    found = on_ranks(3, action)
    assert [type(each) for each in found] == classes
    for each in found:
        assert (each.slug, str(each), each.exit_code, each.retryable) == (slug, str(error), code, retryable)
        assert each.raised_on_all_ranks


def test_unexpected_exception_on_rank_0_is_raised_on_all_ranks():
    def action(comm):
        with pytest.raises(Exception, match="missing") as found:
            run_on_root(comm, lambda: {}["missing"])
        return found.value

    first, *others = on_ranks(3, action)
    assert isinstance(first, KeyError)
    assert [(type(error), error.raised_on_all_ranks) for error in others] == [(SlipwayError, True)] * 2

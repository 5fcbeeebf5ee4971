"""What rank 0 decides reaches every rank, and so does its failure."""

import errno

import pytest

from ranks import on_ranks
from slipway.communicator.sharing import gather_json, on_root, share_json
from slipway.errors import FolderInUseError, SlipwayError
from trainer.errors import ConfigError


@pytest.mark.parametrize("value", [None, 0, "", "é", [1.5, None], {"a": {"b": [True]}}, "x" * 100_000])
def test_the_value_of_rank_0_is_shared(value):
    found = on_ranks(3, lambda ranks: share_json(ranks, value if ranks.world.rank == 0 else "another"))
    assert found == [value] * 3


def test_values_of_all_ranks_are_gathered_in_their_order():
    values = [{"rank": 0}, "a longer text than the others", None, 3.25]
    assert on_ranks(4, lambda ranks: gather_json(ranks, values[ranks.world.rank])) == [values] * 4


def test_an_action_runs_on_rank_0_alone_and_its_result_stays_there():
    ran = []

    def action(ranks):
        return on_root(ranks, lambda: ran.append(ranks.world.rank) or "result")

    assert on_ranks(3, action) == ["result", None, None]
    assert ran == [0]


@pytest.mark.parametrize(
    ("error", "code", "final"),
    [
        (FolderInUseError(folder="a", pid=1, host="b", job="none", since="noon"), 78, True),
        (ConfigError("no such model"), 78, True),
        (OSError(errno.ENOSPC, "No space left on device"), 1, True),
        (OSError(errno.EIO, "Input/output error"), 1, False),
    ],
    ids=repr,
)
def test_its_error_is_raised_on_every_rank(error, code, final):
    def fail():
        raise error

    def action(ranks):
        with pytest.raises(SlipwayError) as found:
            on_root(ranks, fail)
        return found.value

    for found in on_ranks(3, action):
        assert (str(found), found.exit_code, found.final, found.everywhere) == (str(error), code, final, True)
        assert isinstance(found, type(error)) or not isinstance(error, FolderInUseError)

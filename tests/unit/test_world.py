"""Which process of which world this is, as the launcher's variables say."""

import pytest

from ranks import on_ranks
from slipway.communicator.sharing import count_alike
from slipway.errors import AloneError, RanksContradictoryError, RanksNotNamedError, WorldSizeError
from slipway.world import SIZE_VARIABLES, check_size, world_from_environment
from trainer.errors import explain


def variables(rank, size, local_rank):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank)}


@pytest.mark.parametrize("place", [(0, 1, 0), (0, 4, 0), (3, 4, 3), (5, 8, 1)])
def test_rank_size_and_local_rank_are_read_from_the_environment(place):
    assert world_from_environment(variables(*place))[:3] == place


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_a_missing_variable_is_named_with_the_remedy(missing):
    env = variables(0, 1, 0)
    del env[missing]
    with pytest.raises(RanksNotNamedError, match=f"and {missing} not set") as error:
        world_from_environment(env)
    assert "Start it with torchrun, with --nproc-per-node N, or" in explain(error.value)


def test_all_missing_variables_are_named_at_once():
    with pytest.raises(RanksNotNamedError, match="and RANK, WORLD_SIZE, LOCAL_RANK not set"):
        world_from_environment({})


@pytest.mark.parametrize("value", ["", "two", "1.5"])
def test_a_variable_that_is_no_number_is_quoted(value):
    with pytest.raises(RanksContradictoryError, match=f"WORLD_SIZE={value},.*whole numbers"):
        world_from_environment(variables(0, 1, 0) | {"WORLD_SIZE": value})


@pytest.mark.parametrize("place", [(4, 4, 0), (-1, 4, 0), (0, 0, 0), (1, 4, 2), (1, 4, -1)])
def test_variables_that_contradict_each_other_are_refused(place):
    expected = f"RANK={place[0]}, WORLD_SIZE={place[1]}, LOCAL_RANK={place[2]} contradict"
    with pytest.raises(RanksContradictoryError, match=expected):
        world_from_environment(variables(*place))


@pytest.mark.parametrize("name", SIZE_VARIABLES)
def test_a_process_that_is_alone_among_several_started_together_is_refused(name):
    with pytest.raises(AloneError, match=f"alone, but {name}=2: it was started by {SIZE_VARIABLES[name]}") as error:
        check_size(1, {name: "2"})
    assert "--backend horovod" in explain(error.value)
    check_size(1, {name: "1"})
    check_size(2, {name: "2"})


def test_a_world_of_another_size_than_planned_is_refused():
    with pytest.raises(WorldSizeError, match=r"the world has 1 ranks, but 4 were planned \(TRAINER_WORLD_SIZE\)"):
        check_size(1, {"TRAINER_WORLD_SIZE": "4"})
    with pytest.raises(WorldSizeError, match="3 ranks, but 4 were planned"):
        check_size(3, {"TRAINER_WORLD_SIZE": "4"})


def test_a_world_of_the_planned_size_is_accepted():
    check_size(4, {"TRAINER_WORLD_SIZE": "4", "WORLD_SIZE": "4"})
    check_size(1, {"TRAINER_WORLD_SIZE": "1"})
    check_size(1, {"TRAINER_WORLD_SIZE": ""})
    check_size(1, {})


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [("a", [1]), ("aab", [2, 2, 1]), ("ababa", [3, 2, 3, 2, 3]), ("aaaaaaaaa", [9] * 9)],
)
def test_each_rank_learns_how_many_gave_the_same_key(hosts, expected):
    assert on_ranks(len(hosts), lambda ranks: count_alike(ranks, hosts[ranks.world.rank])) == expected

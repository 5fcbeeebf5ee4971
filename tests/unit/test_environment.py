"""Environment variables of launchers and job scripts: rank, local rank and world size of a process."""

import pytest

from messages import refused
from ranks import on_ranks
from slipway.base.environment import SIZE_VARIABLES, Launcher, read_environment
from slipway.base.errors import explain
from slipway.base.stop import Reason
from slipway.dist.collectives import count_equal


def variables(rank, size, local_rank):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank)}


@pytest.mark.parametrize("place", [(0, 1, 0), (0, 4, 0), (3, 4, 3), (5, 8, 1)])
def test_rank_world_size_and_local_rank_are_read_from_environment(place):
    assert read_environment(variables(*place)).world()[:3] == place


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "RANK, WORLD_SIZE, LOCAL_RANK"])
def test_missing_rank_variables_are_reported_with_remedy(missing):
    env = {name: value for name, value in variables(0, 1, 0).items() if name not in missing.split(", ")}
    with refused("ranks-not-named", code=78) as error:
        read_environment(env).world()
    assert error.value.facts["missing"] == missing
    assert "torchrun" in explain(error.value)


@pytest.mark.parametrize("value", ["", "two", "1.5"])
def test_non_numeric_world_size_is_refused(value):
    with refused("bad-rank-variables", f"WORLD_SIZE={value},"):
        read_environment(variables(0, 1, 0) | {"WORLD_SIZE": value}).world()


@pytest.mark.parametrize("place", [(4, 4, 0), (-1, 4, 0), (0, 0, 0), (1, 4, 2), (1, 4, -1)])
def test_inconsistent_rank_variables_are_refused(place):
    with refused("bad-rank-variables", f"RANK={place[0]}, WORLD_SIZE={place[1]}, LOCAL_RANK={place[2]}", code=78):
        read_environment(variables(*place)).world()


@pytest.mark.parametrize("name", SIZE_VARIABLES)
def test_several_processes_with_world_size_1_are_refused(name):
    with refused("separate-processes", f"{name}=2", SIZE_VARIABLES[name]) as error:
        read_environment({name: "2"}).check_size(1)
    assert "--backend" in explain(error.value)
    read_environment({name: "1"}).check_size(1)
    read_environment({name: "2"}).check_size(2)


def test_unexpected_world_size_is_refused():
    for size in (1, 3):
        with refused("wrong-world-size", size, 4, "TRAINER_WORLD_SIZE"):
            read_environment({"TRAINER_WORLD_SIZE": "4"}).check_size(size)


@pytest.mark.parametrize(
    ("planned", "size"),
    [
        ({"TRAINER_WORLD_SIZE": "4", "WORLD_SIZE": "4"}, 4),
        ({"TRAINER_WORLD_SIZE": "1"}, 1),
        ({"TRAINER_WORLD_SIZE": ""}, 1),
        ({}, 1),
    ],
)
def test_planned_world_size_is_accepted(planned, size):
    read_environment(planned).check_size(size)


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [("a", [1]), ("aab", [2, 2, 1]), ("ababa", [3, 2, 3, 2, 3]), ("aaaaaaaaa", [9] * 9)],
)
def test_count_equal_returns_number_of_ranks_with_same_key(hosts, expected):
    assert on_ranks(len(hosts), lambda comm: count_equal(comm, hosts[comm.world.rank])) == expected


@pytest.mark.parametrize(
    ("variables", "launcher"),
    [({}, "OTHER"), ({"TORCHELASTIC_RUN_ID": "none"}, "TORCHRUN"), ({"TRAINER_SPAWNED": "1"}, "SPAWN")],
)
def test_launcher_is_detected_from_variables(variables, launcher):
    assert read_environment(variables).launcher is Launcher[launcher]


@pytest.mark.parametrize(
    ("variables", "ranks", "reason", "code"),
    [
        ({}, 1, Reason.NONE, 0),
        ({}, 1, Reason.USER, 75),
        ({}, 2, Reason.USER, 0),
        ({"TRAINER_SPAWNED": "1"}, 2, Reason.USER, 75),
        ({"TORCHELASTIC_RUN_ID": "none"}, 1, Reason.SIGNAL, 0),
        ({"TORCHELASTIC_RUN_ID": "none"}, 2, Reason.LAUNCHER, 75),
    ],
)
def test_exit_code_of_stop_depends_on_launcher(variables, ranks, reason, code):
    assert read_environment(variables).exit_code(reason, ranks=ranks) == code


@pytest.mark.parametrize("value", ["first", "-1", "1.5", "²"])
def test_non_numeric_attempt_is_refused(value):
    with refused("bad-rank-variables", f"TRAINER_ATTEMPT='{value}'"):
        read_environment({"TRAINER_ATTEMPT": value})


@pytest.mark.parametrize(("value", "threads"), [("", None), ("0", None), ("4", 4), ("4,2", None)])
def test_omp_num_threads_is_used_if_it_is_one_number(value, threads):
    assert read_environment({"OMP_NUM_THREADS": value}).threads == threads


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({}, ["MASTER_ADDR", "MASTER_PORT"]),
        ({"MASTER_ADDR": "a"}, ["MASTER_PORT"]),
        ({"MASTER_ADDR": "a", "MASTER_PORT": "b"}, ["MASTER_PORT", "'b'"]),
    ],
)
def test_missing_or_invalid_master_address_is_refused(variables, missing):
    with refused("ranks-not-named", *missing) as error:
        read_environment(variables).master()
    assert ("MASTER_ADDR" in str(error.value)) == ("MASTER_ADDR" in missing)
    assert read_environment({"MASTER_ADDR": "::1", "MASTER_PORT": "29500"}).master() == ("::1", 29500)

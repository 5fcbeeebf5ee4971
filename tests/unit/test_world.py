"""Which process of which world this is, as the launcher's variables say."""

import pytest
import torch

from trainer.backends.base import count_alike
from trainer.errors import ConfigError
from trainer.world import check_size, ranks_from_environment


def variables(rank, size, local_rank):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank)}


@pytest.mark.parametrize("place", [(0, 1, 0), (0, 4, 0), (3, 4, 3), (5, 8, 1)])
def test_rank_size_and_local_rank_are_read_from_the_environment(place):
    assert ranks_from_environment(variables(*place)) == place


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK"])
def test_a_missing_variable_is_named_with_the_remedy(missing):
    env = variables(0, 1, 0)
    del env[missing]
    with pytest.raises(ConfigError, match=f"and {missing} not set.*torchrun.*--nproc-per-node"):
        ranks_from_environment(env)


def test_all_missing_variables_are_named_at_once():
    with pytest.raises(ConfigError, match="and RANK, WORLD_SIZE, LOCAL_RANK not set"):
        ranks_from_environment({})


@pytest.mark.parametrize("value", ["", "two", "1.5"])
def test_a_variable_that_is_no_number_is_quoted(value):
    with pytest.raises(ConfigError, match=f"WORLD_SIZE='{value}'.*whole numbers"):
        ranks_from_environment(variables(0, 1, 0) | {"WORLD_SIZE": value})


@pytest.mark.parametrize("place", [(4, 4, 0), (-1, 4, 0), (0, 0, 0), (1, 4, 2), (1, 4, -1)])
def test_variables_that_contradict_each_other_are_refused(place):
    with pytest.raises(ConfigError, match=f"RANK={place[0]}, WORLD_SIZE={place[1]}, LOCAL_RANK={place[2]} contradict"):
        ranks_from_environment(variables(*place))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("WORLD_SIZE", "--backend ddp"),
        ("HOROVOD_SIZE", "--backend horovod"),
        ("OMPI_COMM_WORLD_SIZE", "--backend horovod"),
        ("PMI_SIZE", "--backend horovod"),
    ],
)
def test_a_process_that_is_alone_among_several_started_together_is_refused(name, remedy):
    with pytest.raises(ConfigError, match=f"alone, but {name}=2.*{remedy}"):
        check_size(1, {name: "2"})
    check_size(1, {name: "1"})
    check_size(2, {name: "2"})


def test_a_world_of_another_size_than_planned_is_refused():
    with pytest.raises(ConfigError, match=r"the world has 1 ranks, but 4 were planned \(TRAINER_WORLD_SIZE\)"):
        check_size(1, {"TRAINER_WORLD_SIZE": "4"})
    with pytest.raises(ConfigError, match="3 ranks, but 4 were planned"):
        check_size(3, {"TRAINER_WORLD_SIZE": "4"})


def test_a_world_of_the_planned_size_is_accepted():
    check_size(4, {"TRAINER_WORLD_SIZE": "4", "WORLD_SIZE": "4"})
    check_size(1, {"TRAINER_WORLD_SIZE": "1"})
    check_size(1, {"TRAINER_WORLD_SIZE": ""})
    check_size(1, {})


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [(["a"], [1]), (["a", "a", "b"], [2, 2, 1]), (["a", "b", "a", "b", "a"], [3, 2, 3, 2, 3]), (["a"] * 9, [9] * 9)],
)
def test_each_rank_learns_how_many_gave_the_same_key(hosts, expected):
    sent = []
    for rank, host in enumerate(hosts):  # what each rank would put into the sum over all ranks
        count_alike(host, rank=rank, size=len(hosts), total=kept(sent), device=torch.device("cpu"))
    summed = torch.stack(sent).sum(0)
    counts = [
        count_alike(host, rank=rank, size=len(hosts), total=lambda _mine: summed, device=torch.device("cpu"))
        for rank, host in enumerate(hosts)
    ]
    assert counts == expected


def kept(sent):
    def total(values):
        sent.append(values)
        return values

    return total

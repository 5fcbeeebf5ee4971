"""What ranks save and get back: state of one rank, gradients, objects that changed before training continued."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from messages import assert_warning, refused, slugs
from ranks import on_ranks
from slipway.base.environment import World
from slipway.capture import data_parallel, per_rank
from slipway.capture.saved_objects import SavedObjects
from slipway.capture.world_change import require_restorable, warn_of_world_size
from slipway.checkpoint.format import read_checkpoint, write_checkpoint
from slipway.checkpoint.header import Header, Position
from slipway.dist.collectives import as_bytes
from slipway.dist.data_ranks import DataRanks
from slipway.state.module_attributes import ATTRIBUTES, ModuleAttributes
from slipway.state.named_objects import component


class Holder:
    """An object of a script."""

    def __init__(self, state=None):
        self.state = state
        self.loads = 0

    def state_dict(self):
        return self.state

    def load_state_dict(self, state_dict):
        self.state = state_dict
        self.loads += 1


def all_ranks(world):
    """Return the data-parallel coordinates of ranks that divide the samples among all of them."""
    return DataRanks(world, range(world.size))


def ranks_of(size):
    return all_ranks(World(size=size))


def objects_of(comm, given):
    """Return what saves ``given``: objects of a script, or parts of a session as they are."""
    parts = {name: value if name == ATTRIBUTES else component(name, value) for name, value in given.items()}
    return parts, SavedObjects(parts, given, comm, all_ranks(comm.world))


def save(size, make, folder, *, wait=False):
    """Return the checkpoint that ``size`` ranks save of what ``make`` returns for each."""

    def action(comm):
        _, objects = objects_of(comm, make(comm.world.rank))
        facts = objects.collect(gradients_wait=wait, within_pass=False)
        return comm.world.is_root and objects.capture(Header(Position(3), facts={"world_size": size, **facts}))

    checkpoint = on_ranks(size, action)[0]
    write_checkpoint(folder / "step_3", checkpoint)
    return read_checkpoint(folder / "step_3")


def load(size, make, checkpoint, *, between=lambda _: None):
    """Restore what ``make`` returns on ``size`` ranks, twice; return it."""

    def action(comm):
        given = make(comm.world.rank)
        parts, objects = objects_of(comm, given)
        if comm.world.is_root:
            require_restorable(checkpoint.header, parts, ranks_of(size))
        objects.restore(checkpoint if comm.world.is_root else None)
        between(given)
        objects.restore_again()
        return given

    return on_ranks(size, action)


def generators(seed, *, drawn=0):
    found = {
        "extra.torch": torch.Generator().manual_seed(seed),
        "extra.numpy": np.random.default_rng(seed),
        "extra.python": random.Random(seed),
        "extra.state": np.random.RandomState(seed),
    }
    for _ in range(drawn):
        draw(found)
    return found


def draw(given):
    return (
        torch.rand(3, generator=given["extra.torch"]).tolist(),
        given["extra.numpy"].random(3).tolist(),
        given["extra.python"].gauss(),  # it keeps a second number
        given["extra.state"].randn(3).tolist(),
    )


def special(rank):
    """Return numbers that a conversion would change: a NaN with a payload, and -0.0."""
    return torch.tensor([0x7FF0000000000001 + rank, -(2**63)]).view(torch.float64)


def bits(tensor):
    return as_bytes(tensor).tolist()


class TestStateOfEachRank:
    def test_generators_are_restored_per_rank(self, tmp_path):
        checkpoint = save(3, lambda rank: generators(100 + rank, drawn=2 + rank), tmp_path)
        found = load(3, lambda _: generators(0), checkpoint)
        assert [draw(given) for given in found] == [draw(generators(100 + rank, drawn=2 + rank)) for rank in range(3)]

    def test_equal_state_of_ranks_is_saved_once(self, tmp_path):
        checkpoint = save(3, lambda _: generators(7), tmp_path)
        assert {*checkpoint.header.trees, *checkpoint.tensors} == {*generators(7)}
        assert {*checkpoint.header.facts} == {"world_size"}
        assert len({str(draw(given)) for given in load(2, lambda _: generators(0), checkpoint)}) == 1

    def test_only_states_different_from_rank_0_are_saved_per_rank(self, tmp_path):
        def make(rank):
            return {"extra": Holder({"a": special(rank == 2), "n": {"of": [rank == 2]}})}

        checkpoint = save(4, make, tmp_path)
        assert [rank for rank, _ in checkpoint.header.trees["ranks.extra"]["dict"]] == [2]
        for rank, given in enumerate(load(4, lambda _: {"extra": Holder({})}, checkpoint)):
            assert given["extra"].state["n"] == {"of": [rank == 2]}
            assert bits(given["extra"].state["a"]) == bits(special(rank == 2))

    @pytest.mark.parametrize("states", [[{"a": 1}, {"b": 1}], [{}, {"a": torch.ones(2)}], [{"a": 512}, {"a": 65537}]])
    def test_states_with_different_keys_or_types_are_saved_per_rank(self, states, tmp_path):
        checkpoint = save(2, lambda rank: {"extra": Holder(states[rank])}, tmp_path)
        assert [str(given["extra"].state) for given in load(2, lambda _: {"extra": Holder({})}, checkpoint)] == [
            *map(str, states)
        ]

    def test_plateau_scheduler_is_restored_per_rank(self, tmp_path):
        def make(rank):
            optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], 1.0)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            for loss in (1.0, 1.0 + (rank or 0), 1.0 + 2 * (rank or 0)) if rank is not None else ():
                scheduler.step(loss if rank else 1 / (1 + scheduler.last_epoch))
            return {"optimizer": optimizer, "scheduler": scheduler}

        checkpoint = save(2, make, tmp_path)
        for rank, given in enumerate(load(2, lambda _: make(None), checkpoint)):
            expected = make(rank)
            assert given["scheduler"].state_dict() == expected["scheduler"].state_dict()
            assert given["optimizer"].param_groups[0]["lr"] == expected["optimizer"].param_groups[0]["lr"]

    def test_independently_trained_models_are_restored_per_rank(self, tmp_path):
        def make(seed):
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
            optimizer = torch.optim.Adam(model.parameters())
            model(torch.randn(4, 2)).square().sum().backward()
            optimizer.step()
            return {"model": model, "optimizer": optimizer}

        with torch.random.fork_rng():
            made = [make(seed) for seed in (1, 2, 3, 4)]
        checkpoint = save(2, lambda rank: made[rank], tmp_path)
        for rank, given in enumerate(load(2, lambda rank: made[2 + rank], checkpoint)):
            assert all(
                torch.equal(value, made[rank]["model"].state_dict()[key])
                for key, value in given["model"].state_dict().items()
            )
            moments = [given["optimizer"].state_dict(), made[rank]["optimizer"].state_dict()]
            assert str(moments[0]) == str(moments[1])

    def test_state_error_on_one_rank_is_raised_on_all(self, tmp_path):
        def action(comm):
            _, objects = objects_of(comm, {"extra": Holder({"a": object() if comm.world.rank else 1})})
            with pytest.raises(Exception, match="object"):
                objects.collect(gradients_wait=False, within_pass=False)

        on_ranks(2, action)

    def test_too_large_rank_state_warns_at_save_and_blocks_resume(self, tmp_path, monkeypatch, caplog):
        def make(rank):
            return {"extra.a": Holder({"x": torch.full((300,), rank)}), "extra.b": Holder({"x": rank})}

        monkeypatch.setattr(per_rank, "LIMIT", 1000)
        checkpoint = save(2, make, tmp_path)
        assert_warning(caplog.text, "rank-state-not-saved", "extra.a")
        assert {"ranks.extra.b"} == {name for name in checkpoint.header.trees if name.startswith("ranks")}
        with refused("rank-state-not-saved", "extra.a"):
            require_restorable(checkpoint.header, {}, ranks_of(2))

    def test_different_parameters_under_horovod_are_reported(self, tmp_path, monkeypatch, caplog):
        monkeypatch.setattr(data_parallel, "under_horovod", lambda: True)
        models = [nn.Linear(2, 2) for _ in range(2)]
        save(2, lambda rank: {"model": models[rank]}, tmp_path)
        assert_warning(caplog.text, "ranks-differ", "model")
        caplog.clear()
        models[1].load_state_dict(models[0].state_dict())
        save(2, lambda rank: {"model": models[rank]}, tmp_path)
        assert not slugs(caplog.text)


def noisy(seed, rank=0):
    """Return the part of a module with generators: of each rank, alike, and numpy's of each rank."""
    model = nn.Linear(1, 1)
    model.noise = [random.Random(seed), random.Random(7), np.random.default_rng(100 + rank)]
    return {ATTRIBUTES: ModuleAttributes({"model": model})}


class TestChangedWorldSize:
    def test_generators_of_added_ranks_are_distinct_and_reproducible(self, tmp_path, caplog):
        checkpoint = save(2, lambda rank: generators(100 + rank, drawn=1), tmp_path)
        drawn = [[draw(given) for given in load(4, lambda _: generators(0), checkpoint)] for _ in range(2)]
        assert drawn[0] == drawn[1]
        assert drawn[0][:2] == [draw(generators(100 + rank, drawn=1)) for rank in range(2)]
        for of_kind in zip(*drawn[0], strict=True):
            assert len({str(numbers) for numbers in of_kind}) == 4
        assert_warning(caplog.text, "rank-state-changed", "extra.numpy", 2, 4)

    def test_module_generators_of_added_ranks_differ_if_saved_per_rank(self, tmp_path, caplog):
        checkpoint = save(2, lambda rank: noisy(100 + rank, rank), tmp_path)
        models = [given[ATTRIBUTES]._models["model"] for given in load(4, lambda _: noisy(0), checkpoint)]
        of_ranks, alike, of_numpy = ([model.noise[kind].random() for model in models] for kind in range(3))
        assert of_ranks[:2] == [random.Random(100 + rank).random() for rank in range(2)]
        assert len({*of_ranks}) == len({*of_numpy}) == 4
        assert {*alike} == {random.Random(7).random()}
        assert_warning(caplog.text, "rank-state-changed", "attributes", 2, 4)

    @pytest.mark.parametrize("size", [1, 2, 3])
    def test_attribute_equal_to_old_world_size_is_reported(self, size, tmp_path, caplog):
        def make(_):
            model = nn.Linear(1, 1)
            part = ModuleAttributes({"model": model})
            model.world, model.other, model.flag, model.pair = 2, 3, True, torch.ones(1)
            return {ATTRIBUTES: part}

        warn_of_world_size(save(2, make, tmp_path).header, size)
        assert slugs(caplog.text) == (["rank-state-changed"] if size != 2 else [])
        if size != 2:
            assert_warning(caplog.text, "rank-state-changed", "world of model", 2, size)
            assert "other" not in caplog.text

    @pytest.mark.parametrize("size", [1, 3])
    def test_per_rank_objects_are_refused_after_world_size_change(self, size, tmp_path):
        checkpoint = save(2, lambda rank: {"extra.a": Holder({"x": rank}), "extra.b": Holder({"x": 1})}, tmp_path)
        with refused("different-ranks", "extra.a", 2, size):
            require_restorable(checkpoint.header, {"extra.a": Holder(), "extra.b": Holder()}, ranks_of(size))

    @pytest.mark.parametrize(
        ("tensor", "facts", "found"),
        [
            ("running_mean", {}, ["rank-state-changed"]),
            ("running_mean", {"synchronized": ["model"]}, []),
        ],
    )
    def test_buffers_are_taken_from_rank_0(self, tensor, facts, found, caplog):
        require_restorable(*of_one_tensor(tensor, facts), ranks_of(3))
        assert slugs(caplog.text) == found

    def test_parameters_that_differ_between_ranks_are_refused(self):
        with refused("different-ranks", "model"):
            require_restorable(*of_one_tensor("weight", {"synchronized": ["model"]}), ranks_of(3))


def of_one_tensor(name, facts):
    """Return the header of a checkpoint of two ranks that differ in one tensor of a model, and the model's part."""
    trees = {"ranks.model": {"dict": [[1, {"dict": [[name, {"tensor": "x"}]]}]]}}
    header = Header(Position(), facts={"world_size": 2, **facts}, trees=trees)
    return header, {"model": component("model", nn.BatchNorm1d(2))}


def network(seed=0):
    model = nn.ModuleDict(
        {
            "conv": nn.Conv2d(3, 4, 3),
            "last": nn.Conv2d(4, 2, 1).to(memory_format=torch.channels_last),
            "words": nn.Embedding(5, 2, sparse=True),
            "unused": nn.Linear(2, 2),
        }
    )
    with torch.no_grad():  # threads share the generator
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1 + seed, parameter.numel()).view_as(parameter) / (number + 1))
    outside = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    dense = [*model["conv"].parameters(), *model["last"].parameters(), *model["unused"].parameters(), outside]
    return {"model": model, "optimizer": torch.optim.SGD(dense, 0.1, momentum=0.9)}


def accumulate(given, rank=0):
    model, outside = given["model"], given["optimizer"].param_groups[0]["params"][-1]
    images = torch.linspace(-1 - rank, 1, 2 * 3 * 6 * 6).view(2, 3, 6, 6).to(memory_format=torch.channels_last)
    for _ in range(2):
        found = (
            model["last"](model["conv"](images)).square().sum() + model["words"](torch.tensor([1, 1, 3])).sin().sum()
        )
        (found + outside.float().sum()).backward()
    return given


def gradients(given):
    """Return the gradients by number, with all that may differ in them."""
    parameters = [*given["model"].parameters(), given["optimizer"].param_groups[0]["params"][-1]]
    found = []
    for gradient in (parameter.grad for parameter in parameters):
        if gradient is None:
            found.append(None)
        elif gradient.is_sparse:
            parts = gradient._indices().tolist(), bits(gradient._values())
            found.append((*parts, gradient.shape, gradient.is_coalesced()))
        else:
            found.append((bits(gradient), gradient.stride(), gradient.dtype))
    return found


class TestGradients:
    @pytest.mark.parametrize("size", [1, 2])
    def test_pending_gradients_are_restored_bitwise(self, size, tmp_path):
        saved = accumulate(network())
        checkpoint = save(size, lambda _: accumulate(network()), tmp_path, wait=True)
        assert [name for name in checkpoint.tensors if "gradients" in name] == ["gradients"]
        for given in load(size, lambda _: network(1), checkpoint, between=accumulate):
            assert gradients(given) == gradients(saved)
            assert None in gradients(given)

    def test_gradients_are_restored_per_rank(self, tmp_path):
        checkpoint = save(3, lambda rank: accumulate(network(), rank % 2), tmp_path, wait=True)
        assert [rank for rank, _ in checkpoint.header.trees["ranks.gradients"]["dict"]] == [1]
        for rank, given in enumerate(load(3, lambda _: network(1), checkpoint)):
            assert gradients(given) == gradients(accumulate(network(), rank % 2))
        with refused("different-ranks", "gradients"):
            require_restorable(checkpoint.header, {}, ranks_of(2))

    @pytest.mark.parametrize("seen", [False, True])
    def test_only_presence_of_applied_gradients_is_saved(self, seen, tmp_path):
        """Momentum moves a parameter whose gradient is zero, and not one whose gradient is None."""

        def trained(given):
            accumulate(given)
            given["optimizer"].step()
            given["optimizer"].zero_grad(set_to_none=False)
            return given

        def step(given):
            given["model"]["last"](torch.ones(1, 4, 2, 2)).sum().backward()
            given["optimizer"].step()
            return [bits(parameter) for parameter in given["model"].parameters()]

        checkpoint = save(1, lambda _: trained(network()), tmp_path)
        assert "gradients" not in checkpoint.tensors
        (given,) = load(1, lambda _: network(1), checkpoint, between=accumulate if seen else lambda _: None)
        assert step(given) == step(trained(network()))

    def test_checkpoint_without_gradients_restores_none(self, tmp_path):
        checkpoint = save(2, lambda _: network(), tmp_path, wait=True)
        assert not [name for name in {*checkpoint.tensors, *checkpoint.header.trees} if "gradients" in name]
        (given, _) = load(2, lambda _: network(1), checkpoint, between=accumulate)
        assert gradients(given) == [None] * len(gradients(given))

    def test_gradients_of_different_model_are_refused(self, tmp_path):
        checkpoint = save(1, lambda _: accumulate(network()), tmp_path, wait=True)
        with refused("different-state", "conv.weight"):
            load(1, lambda _: {"other": nn.Linear(2, 2)}, checkpoint)

    def test_gradients_too_large_for_rank_0_memory_block_resume(self, tmp_path, monkeypatch, caplog):
        monkeypatch.setattr(per_rank, "available_memory", lambda: 1000)
        checkpoint = save(2, lambda rank: accumulate(network(), rank), tmp_path, wait=True)
        assert_warning(caplog.text, "rank-state-not-saved", "gradients")
        with refused("rank-state-not-saved", "gradients"):
            require_restorable(checkpoint.header, {}, ranks_of(2))


class TestRestoredAgain:
    def test_state_changed_after_open_is_restored_again(self, tmp_path, caplog):
        def make(_):
            given = network()
            scheduler = torch.optim.lr_scheduler.StepLR(given["optimizer"], 1, 0.5)
            return {**given, "scheduler": scheduler, "extra": Holder({"n": 1}), **generators(5)}

        groups = []

        def between(given):
            groups.append(given["optimizer"].param_groups[0])
            with torch.no_grad():
                given["model"]["conv"].weight.fill_(3)
            given["optimizer"].param_groups[0]["lr"] = given["scheduler"].last_epoch = 7
            draw(given)

        caplog.set_level("INFO")
        checkpoint = save(2, make, tmp_path)
        for given, group in zip(load(2, make, checkpoint, between=between), groups, strict=True):
            expected = make(0)
            assert bits(given["model"]["conv"].weight) == bits(expected["model"]["conv"].weight)
            assert given["scheduler"].state_dict() == expected["scheduler"].state_dict()
            assert draw(given) == draw(expected)
            assert given["extra"].loads == 1
            assert group["lr"] == 0.1
            assert any(given["optimizer"].param_groups[0] is own for own in groups)
        assert caplog.text.count("was saved, not") == 0

    def test_state_changed_on_one_rank_is_restored_on_all(self, tmp_path):
        checkpoint = save(2, lambda rank: {"extra": Holder({"n": rank})}, tmp_path)
        found = []

        def between(given):
            if given["extra"].state["n"]:
                given["extra"].state["n"] = 5
            found.append(given)

        for rank, given in enumerate(load(2, lambda _: {"extra": Holder({})}, checkpoint, between=between)):
            assert (given["extra"].state, given["extra"].loads) == ({"n": rank}, 2)

    def test_new_run_restores_nothing(self):
        def action(comm):
            given = {"model": nn.Linear(2, 2)}
            _, objects = objects_of(comm, given)
            objects.restore(None)
            with torch.no_grad():
                given["model"].weight.fill_(2)
            objects.restore_again()
            return bits(given["model"].weight) == bits(torch.full((2, 2), 2.0))

        assert on_ranks(2, action) == [True, True]

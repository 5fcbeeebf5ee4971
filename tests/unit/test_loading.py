"""Batches of a loader from any position on, with any workers; slipway.Sampler with changing numbers of ranks."""

import random
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from messages import refused
from slipway.base.environment import World
from slipway.data.feed import Feed
from slipway.data.loading import Origin, Seeds, SkippingSource, can_skip
from slipway.data.sampler import Sampler, global_batches, share
from slipway.rng.permutation import ORDER_VERSION
from slipway.rng.seeding import seed_generators

SAMPLES = 23


class Noisy(Dataset):
    def __init__(self, samples=SAMPLES):
        self.samples = samples
        self.offset = 0.0

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.tensor([index, random.random() + self.offset, np.random.rand(), torch.rand(1).item()])


def set_offset(_worker):
    data = get_worker_info().dataset
    assert (type(data), len(data), data[3][0]) == (Noisy, SAMPLES, 3)
    data.offset = 1.0


SAMPLERS = {
    "shuffle": lambda _: {"shuffle": True, "batch_size": 4},
    "in order, ragged end dropped": lambda _: {"batch_size": 4, "drop_last": True},
    "own generator": lambda data: {
        "sampler": RandomSampler(data, generator=torch.Generator().manual_seed(5)),
        "batch_size": 4,
    },
    "loader's generator": lambda _: {"shuffle": True, "batch_size": 4, "generator": torch.Generator()},
    "weighted": lambda _: {"sampler": WeightedRandomSampler([1.0] * 9 + [2.0] * 14, 20), "batch_size": 4},
    "subset": lambda _: {"sampler": SubsetRandomSampler(range(3, 17)), "batch_size": 4},
    "distributed": lambda data: {"sampler": DistributedSampler(data, num_replicas=2, rank=1), "batch_size": 4},
    "batch sampler": lambda data: {"batch_sampler": BatchSampler(RandomSampler(data), 5, drop_last=False)},
    "no batches": lambda _: {"batch_size": None, "shuffle": True},
    "slipway's": lambda data: {"sampler": Sampler(data), "batch_size": 4},
}


ALONE, BEGIN, CPU = World(), Origin(), torch.device("cpu")


def batches(replay, *, skip=0, seed=1, world=ALONE, origin=BEGIN, device=None):
    found = replay.start(skip=skip, origin=origin, world=world, seeds=Seeds(seed, seed + 100, 0), device=device)
    return [batch.tolist() for batch in found.batches]


@pytest.mark.parametrize("workers", [{"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}], ids=str)
@pytest.mark.parametrize("name", SAMPLERS)
def test_resumed_pass_yields_same_remaining_batches(name, workers):
    data = Noisy()
    loader = DataLoader(data, **SAMPLERS[name](data), **workers)
    whole = batches(SkippingSource(loader))
    torch.rand(7)
    again = SkippingSource(loader)
    assert batches(again, skip=3) == whole[3:]
    assert batches(again) == whole  # a second pass, with persistent workers
    assert batches(again, skip=3, device=CPU) == whole[3:]
    assert batches(again, seed=2) != whole


def test_fetched_samples_are_independent_of_number_of_workers():
    loaders = [DataLoader(Noisy(), 4, shuffle=True, num_workers=workers) for workers in (1, 2, 3)]
    found = [batches(SkippingSource(loader)) for loader in loaders]
    assert found[0] == found[1] == found[2]


def test_worker_init_fn_gets_original_dataset():
    loader = DataLoader(Noisy(), 4, num_workers=1, worker_init_fn=set_offset)
    assert all(sample[1] >= 1 for batch in batches(SkippingSource(loader)) for sample in batch)


def test_dataset_with_getitems_fetches_whole_batches():
    class AtOnce(Noisy):
        def __getitems__(self, indices):
            return [torch.tensor([float(index)]) for index in indices]

    assert batches(SkippingSource(DataLoader(AtOnce(), 10)))[0] == [[float(index)] for index in range(10)]


def test_only_plain_data_loader_can_be_replayed():
    class Own(DataLoader):
        def __iter__(self):
            return super().__iter__()

    assert can_skip(DataLoader(Noisy(), 4))
    assert not can_skip(Own(Noisy(), 4))
    assert not can_skip([1, 2])


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("samples", [1, 2, 3, 23, 24, 25, 203])
def test_global_batches_hold_each_sample_once_and_feed_every_rank(samples, ranks, drop_last):
    division = global_batches(samples, batch_size=4, ranks=ranks, drop_last=drop_last)
    ends = [division.end(number) for number in range(division.count + 1)]
    for begin, end in pairwise(ends):
        parts = [list(share(range(begin, end), rank, ranks)) for rank in range(ranks)]
        assert all(parts) or samples < ranks
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        assert max(map(len, parts)) <= 5
        assert list(chain(*parts)) == list(range(begin, end))
    assert ends[0] == 0 or not division.count
    assert ends[-1] == samples if not drop_last else samples - 4 * ranks < ends[-1] <= samples


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("sizes", [(2, 1, 2), (1, 3, 4), (4, 1, 1), (3, 2, 7)])
def test_epoch_over_changing_world_sizes_yields_each_sample_once(sizes, large, monkeypatch):
    monkeypatch.setattr("slipway.rng.permutation.MAX_TABLE", 100 if large else 1000)
    data = Noisy(203)
    loader = DataLoader(data, 5, sampler=Sampler(data))
    seen, done, origin = [], 0, Origin()
    for number, size in enumerate(sizes):
        steps = 6 if number < len(sizes) - 1 else None
        for rank in range(size):
            replay = SkippingSource(loader)
            world = World(rank, size, rank, size)
            left = batches(replay, skip=done, world=world, origin=origin)
            seen += [int(sample[0]) for batch in left[:steps] for sample in batch]
        consumed = replay.consumed(done + 6, origin, world)
        done += 6
        origin = Origin(consumed, done)
    assert sorted(seen) == list(range(203))


def test_rank_without_sample_repeats_first_sample():
    data = Noisy(3)
    loader = DataLoader(data, 5, sampler=Sampler(data))
    found = [batches(SkippingSource(loader), world=World(rank, 5, rank, 5)) for rank in range(5)]
    numbers = [[int(sample[0]) for batch in own for sample in batch] for own in found]
    assert sorted(chain(*numbers[:3])) == [0, 1, 2]
    assert numbers[3] == numbers[4] == numbers[0]


def test_sampler_within_batch_sampler_is_refused():
    data = Noisy()
    with refused("sampler-batch-size", "batch_size"):
        SkippingSource(DataLoader(data, batch_sampler=BatchSampler(Sampler(data), 4, drop_last=False)))


@pytest.mark.parametrize("workers", [{}, {"num_workers": 2, "persistent_workers": True}], ids=str)
def test_pass_over_large_dataset_resumes_at_any_batch(workers, monkeypatch):
    monkeypatch.setattr("slipway.rng.permutation.MAX_TABLE", 100)
    data = Noisy(203)
    loader = DataLoader(data, 5, sampler=Sampler(data), **workers)
    replay = SkippingSource(loader)
    world = World(1, 2, 1, 2)
    whole = batches(replay, world=world)
    assert whole != batches(replay, seed=2, world=world)
    if workers:  # otherwise noise comes from this process
        assert batches(replay, skip=7, world=world) == whole[7:]
    assert [[s[0] for s in b] for b in batches(replay, skip=7, world=world)] == [[s[0] for s in b] for b in whole[7:]]


def test_huge_dataset_is_sampled_without_permutation_table():
    sampler = Sampler(range(1 << 40))
    loader = DataLoader(range(1 << 40), 32, sampler=sampler)
    found = SkippingSource(loader).start(skip=1 << 34, origin=BEGIN, world=World(1, 2, 1, 2), seeds=Seeds(1, 2, 0))
    assert found.total == 1 << 34
    assert list(found.batches) == []
    found = SkippingSource(loader).start(skip=1 << 33, origin=BEGIN, world=World(1, 2, 1, 2), seeds=Seeds(1, 2, 0))
    assert len(set(next(found.batches).tolist())) == 32


def test_sampler_without_session_yields_whole_order():
    sampler = Sampler(Noisy())
    assert sorted(sampler) == list(range(SAMPLES))
    assert len(sampler) == SAMPLES
    assert len(DataLoader(Noisy(), 4, sampler=sampler)) == 6
    assert list(Sampler(Noisy(), shuffle=False)) == list(range(SAMPLES))


@pytest.mark.parametrize("name", ["shuffle", "weighted", "subset", "batch sampler", "own generator"])
def test_non_distributed_samplers_draw_differently_on_each_rank(name):
    data = Noisy()
    loader = DataLoader(data, **SAMPLERS[name](data))
    found = [batches(SkippingSource(loader), world=World(rank, 2, rank, 2)) for rank in (0, 1)]
    ids = [[sample[0] for batch in one for sample in batch] for one in found]
    assert ids[0] != ids[1]


@pytest.mark.parametrize("name", [*SAMPLERS, "iterable"])
def test_batches_moved_to_device_draw_same_numbers_without_workers(name):
    """Noisy's samples draw from the global generators of this process, and so does the body of a loop."""
    data = Noisy()
    loader = [[data[index]] for index in range(9)] if name == "iterable" else DataLoader(data, **SAMPLERS[name](data))

    def drawn(device):
        seed_generators(5)
        found = Feed(ALONE, seed=0, repeat_epoch=False).begin(loader, epoch=0, device=device)
        return [(str(batch), random.random(), torch.rand(1).item()) for batch in found.batches]

    assert drawn(None) == drawn(CPU)


class TestFeed:
    def feed(self, rank=0, size=1, **options):
        return Feed(World(rank, size, rank, size), seed=0, **{"repeat_epoch": False, **options})

    def test_set_epoch_is_called_in_loader_and_batch_sampler(self):
        data = Noisy()
        sampler = DistributedSampler(data, num_replicas=2, rank=0)
        for loader in (
            DataLoader(data, 4, sampler=sampler),
            DataLoader(data, batch_sampler=BatchSampler(sampler, 4, True)),
        ):
            orders = [
                [batch[:, 0].tolist() for batch in self.feed().begin(loader, epoch=epoch).batches] for epoch in (0, 1)
            ]
            assert orders[0] != orders[1]
            assert sampler.epoch == 1

    @pytest.mark.parametrize(
        "places",
        [
            [[1, 0, None, 9, None, [], {}], [0, 7, 9, 7, 36, [], {}]],
            [[0, 3, 6, 3, 23, [], {}], [0, 3, 6, 3, 23, [], {}]],
        ],
        ids=["in two passes", "in one pass"],
    )
    def test_changed_world_size_within_epoch_is_refused_or_epoch_repeated(self, places):
        facts = {"places": places, "origin": [0, 0], "samples": 0, "order": ORDER_VERSION}
        loader = DataLoader(Noisy(), 4)
        feed = self.feed()
        assert feed.resume(facts, 9) == 9
        with refused("different-ranks", 2, 1, "repeat_epoch=True"):
            feed.begin(loader, epoch=0)
        feed = self.feed(repeat_epoch=True)
        feed.resume(facts, 9)
        assert len(list(feed.begin(loader, epoch=0).batches)) == 6
        assert not feed.is_resuming

    @pytest.mark.parametrize("batch", [0, 2])
    def test_sample_order_of_other_version_is_refused(self, batch):
        """Also at the end of an epoch; of torch's samplers the order has not changed."""
        places = [[0, batch, 6, batch, SAMPLES, [], {}]]
        facts = {"places": places, "origin": [0, 0], "samples": 0, "order": ORDER_VERSION + 1}
        data, feed = Noisy(), self.feed()
        feed.resume(facts, 5)
        with refused("order-version", ORDER_VERSION + 1, ORDER_VERSION):
            feed.begin(DataLoader(data, 4, sampler=Sampler(data)), epoch=0)
        feed = self.feed()
        feed.resume(facts, 5)
        assert len(list(feed.begin(DataLoader(data, 4, shuffle=True), epoch=0).batches)) == 6 - batch

    def test_ranks_resume_at_separate_positions(self):
        places = [[0, 2, 6, 2, SAMPLES, [], {}], [0, 5, 6, 5, SAMPLES, [], {}]]
        facts = {"places": places, "origin": [0, 0], "samples": 0, "order": ORDER_VERSION}
        for rank, left in ((0, 4), (1, 1)):
            feed = self.feed(rank, 2)
            assert feed.resume(facts, 5) == facts["places"][rank][3]
            assert len(list(feed.begin(DataLoader(Noisy(), 4), epoch=0).batches)) == left


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("samples", [30, 31, 32, 203])
def test_loader_length_matches_number_of_batches(samples, ranks, drop_last, monkeypatch):
    monkeypatch.setattr("slipway.data.sampler.count_ranks", lambda: ranks)
    data = Noisy(samples)
    loader = DataLoader(data, 4, sampler=Sampler(data), drop_last=drop_last)
    world = World(0, ranks, 0, ranks)
    assert len(loader) == len(batches(SkippingSource(loader), world=world))

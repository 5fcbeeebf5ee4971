"""Loaders of many kinds under a session: a run that is stopped anywhere sees the batches of one that is not."""

import functools
import gc
import os
import random
import signal
from itertools import islice

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from messages import assert_warning, slugs
from slipway import Session, Stopped
from slipway.held_data import digest_of_data
from slipway.workers import end_workers

SAMPLES = 12
EPOCHS = 2


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    monkeypatch.setattr("slipway.agreement.VOTE_INTERVAL", 0)  # after each step, so that tests know where a run stops
    for name in ("RUN_DIR", "TRAINER_ATTEMPT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    yield
    for left in gc.get_objects():  # as the garbage collector takes five seconds for each worker
        if type(left) is _MultiProcessingDataLoaderIter:
            left._shutdown_workers()


def draw_of_numpy():
    return np.random.rand()  # noqa: NPY002 -- the global one


class Samples(Dataset):
    """Numbers with noise from the global generators, and from what subclasses add."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([index, random.random(), draw_of_numpy(), torch.rand(1).item(), self.draw()])

    def draw(self):
        return 0.0


module_generator = np.random.default_rng(3)


class OfTheModule(Samples):
    def draw(self):
        return draw_from_the_module()


def draw_from_the_module():
    return module_generator.random()


class Drawing(Samples):
    def __init__(self, generator):
        self.generator = generator

    def draw(self):
        draw = getattr(self.generator, "random", None) or self.generator.random_sample
        return draw()


class Slotted(Samples):
    __slots__ = ("generator",)

    def __init__(self):
        self.generator = torch.Generator()

    def draw(self):
        return torch.rand(1, generator=self.generator).item()


class Stream(IterableDataset):
    def __init__(self, generator=None):
        self.generator = generator or random

    def __iter__(self):
        info = get_worker_info()
        numbers = list(range(info.id if info else 0, SAMPLES, info.num_workers if info else 1))
        self.generator.shuffle(numbers)
        for number in numbers:
            yield torch.tensor([number, draw_of_numpy(), torch.rand(1).item(), self.generator.random()])


class Endless(torch.utils.data.Sampler):
    def __init__(self, draw):
        self.draw = draw

    def __iter__(self):
        while True:
            yield int(self.draw() * SAMPLES)


class EndlessWithLength(Endless):
    def __len__(self):
        return 3


class Shuffled(torch.utils.data.Sampler):
    """Draws from a generator of its own, which continues from epoch to epoch."""

    def __init__(self, generator):
        self.generator = generator

    def __iter__(self):
        order = list(range(SAMPLES))
        self.generator.shuffle(order)
        return iter(order)

    def __len__(self):
        return SAMPLES


class ByEpoch(BatchSampler):
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return islice(super().__iter__(), self.epoch, None)


class NoisyCollate:
    def __init__(self):
        self.generator = np.random.RandomState(2)

    def __call__(self, items):
        return torch.stack(items) + self.generator.rand()


class Doubled(DataLoader):
    def __iter__(self):
        return (2 * batch for batch in super().__iter__())


class Renewed(DataLoader):
    def _get_iterator(self):
        iterator = super()._get_iterator()
        self.iterations = getattr(self, "iterations", 0) + 1
        return iterator


class Reversed(DataLoader):
    @property
    def _index_sampler(self):
        return list(self.batch_sampler)[::-1]


class TwoPasses(DataLoader):
    def __len__(self):
        return 99


def seed_by_id(worker):
    np.random.seed(worker)  # noqa: NPY002 -- as scripts do
    get_worker_info().dataset.generator = np.random.default_rng(get_worker_info().seed)


class ByWorker(Samples):
    scale = 1

    def draw(self):
        return self.scale


def scale_by_worker(worker):
    get_worker_info().dataset.scale = 0.5 + worker


def noisy_collate(generator):
    return lambda items: [items, generator.random()]


def rng():
    return np.random.default_rng(7)


def side_by_side(*loaders):
    return zip(*loaders, strict=False)


WORKER = {"num_workers": 1}
PERSISTENT = {"num_workers": 1, "persistent_workers": True}
LOADERS = {
    "data set with a generator": lambda: DataLoader(Drawing(rng()), 4, shuffle=True),
    "data set with Python's generator": lambda: DataLoader(Drawing(random.Random(5)), 4),
    "generator within": lambda: DataLoader(Subset(ConcatDataset([Drawing(np.random.RandomState(1))]), range(8)), 2),
    "generator of the module": lambda: DataLoader(OfTheModule(), 4),
    "generator in slots": lambda: DataLoader(Slotted(), 4),
    "collate_fn with a generator": lambda: DataLoader(Samples(), 4, collate_fn=NoisyCollate()),
    "a closure with a generator": lambda: DataLoader(Samples(), 4, collate_fn=noisy_collate(rng())),
    "a partial with a generator": lambda: DataLoader(
        Samples(), 4, collate_fn=functools.partial(lambda own, items: [items, own.random()], rng())
    ),
    "worker": lambda: DataLoader(Drawing(rng()), 4, shuffle=True, collate_fn=NoisyCollate(), **WORKER),
    "persistent worker": lambda: DataLoader(Drawing(rng()), 4, shuffle=True, collate_fn=NoisyCollate(), **PERSISTENT),
    "seeded by its number": lambda: DataLoader(Drawing(rng()), 4, worker_init_fn=seed_by_id, **PERSISTENT),
    "worker by worker": lambda: DataLoader(ByWorker(), 4, num_workers=2, worker_init_fn=scale_by_worker),
    "stream": lambda: DataLoader(Stream(), 3),
    "stream with a generator": lambda: DataLoader(Stream(random.Random(1)), 3),
    "stream, worker": lambda: DataLoader(Stream(random.Random(1)), 3, **WORKER),
    "stream, persistent worker": lambda: DataLoader(Stream(), 3, **PERSISTENT),
    "stream, persistent, generator": lambda: DataLoader(Stream(random.Random(1)), 3, **PERSISTENT),
    "weighted": lambda: DataLoader(Samples(), 4, sampler=WeightedRandomSampler([1.0, 2.0] * 6, 9)),
    "subset": lambda: DataLoader(Samples(), 4, sampler=SubsetRandomSampler(range(3, 12))),
    "distributed": lambda: DataLoader(Samples(), 2, sampler=DistributedSampler(Samples(), 2, 1)),
    "listed batches": lambda: DataLoader(Samples(), batch_sampler=[[0, 1, 2], [5], [7, 6]]),
    "batches by epoch": lambda: DataLoader(Samples(), batch_sampler=ByEpoch(RandomSampler(Samples()), 3, False)),
    "sampler with a generator": lambda: DataLoader(Samples(), 4, sampler=Shuffled(random.Random(3))),
    "batch sampler over it": lambda: DataLoader(Samples(), batch_sampler=BatchSampler(Shuffled(rng()), 4, False)),
    "iteration overridden": lambda: Doubled(Drawing(rng()), 4, shuffle=True, generator=torch.Generator()),
    "iteration overridden, persistent": lambda: Doubled(Drawing(rng()), 4, shuffle=True, **PERSISTENT),
    "iterator overridden": lambda: Renewed(Samples(), 4, shuffle=True),
    "order overridden": lambda: Reversed(Samples(), 4, shuffle=True),
    "another length": lambda: TwoPasses(Samples(), 4, shuffle=True),
    "two side by side": lambda: functools.partial(
        side_by_side, DataLoader(Drawing(rng()), 4, shuffle=True), DataLoader(Samples(), 5, shuffle=True)
    ),
    "two, workers": lambda: functools.partial(
        side_by_side, DataLoader(Samples(), 4, shuffle=True, **WORKER), DataLoader(Drawing(rng()), 2, **PERSISTENT)
    ),
    "list": lambda: [torch.ones(2), torch.zeros(2), torch.ones(2)],
}


def train(folder, make_loader, *, stop_at=None, epochs=EPOCHS, between=None, limit=None, extra=None, body=None):
    """Train on the batches of ``make_loader()``, which may make an iterable for each epoch; return what was seen."""
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make = make_loader()
    seen = []
    with Session(model=model, optimizer=optimizer, folder=folder, extra=extra) as session:
        for epoch in session.epochs(epochs):
            if between:
                between(epoch, make)
            for batch in session.batches(make() if callable(make) else make):
                seen.append(repr(batch) + str(body and body(make)))
                optimizer.zero_grad()
                (model(torch.ones(1, 1)) + torch.rand(1) + draw_of_numpy()).square().mean().backward()
                optimizer.step()
                if session.step + 1 == stop_at:
                    os.kill(os.getpid(), signal.SIGTERM)
                if session.batch + 1 == limit:
                    break
    return seen, model.weight.item()


def assert_resumes(tmp_path, make_loader, stops, **options):
    whole, weight = train(tmp_path / "whole", make_loader, **options)
    assert whole
    for stop_at in stops:
        folder = tmp_path / f"stopped{stop_at}"
        with pytest.raises(Stopped):
            train(folder, make_loader, stop_at=stop_at, **options)
        seen, again = train(folder, make_loader, **options)
        assert (seen, again) == (whole[stop_at:], weight), f"stopped at {stop_at}"
    return whole


@pytest.mark.parametrize("name", LOADERS)
def test_a_resumed_run_sees_the_batches_of_the_whole_one(name, tmp_path):
    whole = assert_resumes(tmp_path, LOADERS[name], [4 if name == "worker by worker" else 5])
    assert len(set(whole)) == len(whole) or name == "list"


class Backwards(list):
    def __iter__(self):
        return reversed(self)


@pytest.mark.parametrize("kind", [range, tuple, Backwards])
def test_batches_that_are_there_already_are_not_read_again(kind, tmp_path, caplog):
    batches = range(4) if kind is range else kind(range(4))
    assert_resumes(tmp_path, lambda: batches, [2], epochs=1)
    assert slugs(caplog.text).count("slow-resume") == (kind is Backwards)


@pytest.mark.parametrize("kind", [Endless, EndlessWithLength])
@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 2, **WORKER}], ids=repr)
def test_a_sampler_without_end_is_left_by_break(kind, options, tmp_path, monkeypatch):
    monkeypatch.setattr("slipway.order.CHUNK", 4)
    own = random.Random(3)
    draws = [random.random, own.random, lambda: torch.rand(1).item()]
    for number, draw in enumerate(draws[: 1 if options.get("num_workers") else 3]):
        assert_resumes(
            tmp_path / str(number),
            lambda draw=draw: DataLoader(Samples(), sampler=kind(draw), **options),
            [9] if number else [12],
            limit=11,
        )


class Leveled(Samples):
    def __init__(self):
        self.level = 0

    def draw(self):
        return self.level


class Counting(Leveled):
    def __init__(self):
        super().__init__()
        self.fetched = 0

    def draw(self):
        self.fetched += 1
        return super().draw()


class CountingStream(Stream):
    def __init__(self):
        super().__init__()
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


class CountingOrder(Shuffled):
    def __init__(self):
        super().__init__(random.Random(2))
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([self.passes % SAMPLES] * 4)


def halve(items):
    return torch.stack(items) / 2


def once(epoch, loader):
    if epoch == 1:
        loader.collate_fn = halve


def each_time(epoch, loader):
    loader.collate_fn = halve if epoch else torch.stack


def augment_once(epoch, loader):
    if epoch == 1:
        loader.dataset.level = 1


def raise_level(epoch, loader):
    loader.dataset.level = epoch


class Labeled(Samples):
    def __init__(self, labels):
        self.labels = labels

    def draw(self):
        return float(self.labels[0])


class Alternating:
    def __init__(self):
        self.loaders = [DataLoader(Labeled(torch.full((1,), value)), 4) for value in (1.0, 2.0)]

    def __call__(self):
        return self.loaders[self.epoch % 2]


def relabel_once(epoch, loader):
    if epoch == 1:
        loader.dataset.labels[0] += 1


def replace_once(epoch, loader):
    if epoch == 1:
        loader.dataset.labels = np.ones(1)


def relabel(epoch, loader):
    loader.dataset.labels[0] = epoch


def weigh_once(epoch, loader):
    if epoch == 1:
        loader.sampler.weights = loader.sampler.weights * torch.arange(SAMPLES)


def grow_once(epoch, loader):
    if epoch == 1:
        loader.dataset.indices += [3] * 4


def alternate(epoch, loaders):
    loaders.epoch = epoch


def weighted():
    return DataLoader(Samples(), 4, sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES))


def nothing(_epoch, _loader):
    pass


@pytest.mark.parametrize("workers", [{}, PERSISTENT], ids=["rank", "workers"])
def test_a_change_takes_effect_in_the_next_pass(workers, tmp_path):
    plain, _ = train(tmp_path / "plain", lambda: DataLoader(Counting(), 4, **workers))
    for number, change in enumerate((once, augment_once)):
        seen, _ = train(tmp_path / str(number), lambda: DataLoader(Counting(), 4, **workers), between=change)
        assert [was == now for was, now in zip(plain, seen, strict=True)] == [True] * 3 + [False] * 3


CHANGES = {
    "in the epoch itself": (once, lambda: DataLoader(Samples(), 4), 5, ""),
    "once, within a later epoch": (once, lambda: DataLoader(Samples(), 4), 7, "collate_fn"),
    "once, between epochs": (once, lambda: DataLoader(Samples(), 4), 6, "collate_fn"),
    "once, with workers": (once, lambda: DataLoader(Samples(), 4, **WORKER), 7, "collate_fn"),
    "in each epoch": (each_time, lambda: DataLoader(Samples(), 4), 7, ""),
    "once, of the data set": (augment_once, lambda: DataLoader(Leveled(), 4), 7, "dataset.level"),
    "in each epoch, of the data set": (raise_level, lambda: DataLoader(Leveled(), 4), 6, ""),
    "once, of a tensor": (relabel_once, lambda: DataLoader(Labeled(torch.zeros(1)), 4), 7, "dataset.labels"),
    "once, of an array": (replace_once, lambda: DataLoader(Labeled(np.zeros(1)), 4), 6, "dataset.labels"),
    "once, of weights, between epochs": (weigh_once, weighted, 6, "sampler.weights"),
    "once, of a list": (grow_once, lambda: DataLoader(Subset(Samples(), [*range(SAMPLES)]), 4), 7, "dataset.indices"),
    "in each epoch, of a tensor": (relabel, lambda: DataLoader(Labeled(torch.zeros(1)), 4), 7, ""),
    "in each epoch, of an array, between": (relabel, lambda: DataLoader(Labeled(np.zeros(1)), 4), 6, ""),
    "loaders that take turns": (alternate, Alternating, 6, ""),
    "counted while samples are fetched": (nothing, lambda: DataLoader(Counting(), 4), 2, "dataset.fetched"),
    "counted by a stream": (nothing, lambda: DataLoader(CountingStream(), 3), 5, "dataset.passes"),
    "counted by a sampler": (nothing, lambda: DataLoader(Samples(), 2, sampler=CountingOrder()), 3, "sampler.passes"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_a_resumed_attempt_lacks_is_named(name, tmp_path, caplog):
    change, make_loader, stop_at, named = CHANGES[name]
    whole, _ = train(tmp_path / "whole", make_loader, between=change, epochs=3)
    with pytest.raises(Stopped):
        train(tmp_path / "run", make_loader, between=change, epochs=3, stop_at=stop_at)
    assert "changed-loader" not in slugs(caplog.text)
    seen, _ = train(tmp_path / "run", make_loader, between=change, epochs=3)
    if named:
        assert_warning(caplog.text, "changed-loader", named)
    else:
        assert "changed-loader" not in slugs(caplog.text)
        assert seen == whole[stop_at:]


@pytest.mark.parametrize("make", [torch.zeros, np.zeros, lambda shape: torch.zeros(shape[::-1]).T])
def test_of_large_data_elements_at_equal_distances_are_compared(make):
    data = make((1000, 600))
    before = digest_of_data(data)
    data[7] = 1
    assert digest_of_data(data) != before


def test_what_is_slow_to_read_has_its_shape_alone(tmp_path):
    mapped = np.memmap(tmp_path / "data", "float32", "w+", shape=(8,))
    (tmp_path / "tensor").write_bytes(bytes(32))
    of_file = torch.from_file(str(tmp_path / "tensor"), shared=True, size=8)
    for data in (mapped, mapped[2:], of_file, torch.empty(8, device="meta"), np.array(["a", None])):
        assert digest_of_data(data).endswith("]")
    assert not digest_of_data(torch.ones(3, dtype=torch.bfloat16, requires_grad=True)).endswith("]")


@pytest.mark.parametrize("copies", [True, False])
@pytest.mark.parametrize("stop_at", [2, 5])
def test_a_list_that_the_script_shuffles_in_each_epoch(stop_at, copies, tmp_path, caplog):
    def run(folder, stop_at=None):
        batches = [torch.full((2, 1), float(number)) for number in range(3)]

        def shuffled():
            order = [*batches] if copies else batches
            random.shuffle(order)
            return order

        return train(folder, lambda: shuffled, stop_at=stop_at)

    whole = run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "run", stop_at)
    again = run(tmp_path / "run")
    is_exact = again == (whole[0][stop_at:], whole[1])
    assert is_exact or "different-data" in slugs(caplog.text)
    assert is_exact >= copies


class Weighted(Shuffled):
    def __init__(self):
        self.chances = torch.ones(SAMPLES)

    def __iter__(self):
        return iter(torch.multinomial(self.chances, SAMPLES, replacement=True).tolist())

    def state_dict(self):
        return {"chances": self.chances}

    def load_state_dict(self, state):
        self.chances = state["chances"]


@pytest.mark.parametrize("within", [True, False])
def test_a_sampler_in_extra_that_changes_within_the_epoch_is_named(within, tmp_path, caplog):
    def run(folder, stop_at=None):
        sampler = Weighted()

        def weigh(epoch):
            sampler.chances = torch.arange(float(SAMPLES)) + epoch

        return train(
            folder,
            lambda: DataLoader(Samples(), 4, sampler=sampler),
            extra=sampler,
            stop_at=stop_at,
            body=(lambda _: weigh(2.0)) if within else None,
            between=lambda epoch, _: None if within else weigh(epoch),
        )

    whole = run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "run", stop_at=2)
    again = run(tmp_path / "run")
    assert (again == (whole[0][2:], whole[1])) != within
    assert slugs(caplog.text).count("changed-loader") == within


def test_a_change_that_an_attempt_has_made_again_is_remembered(tmp_path, caplog):
    def attempt(stop_at=None):
        train(tmp_path, lambda: DataLoader(Samples(), 4), between=once, epochs=3, stop_at=stop_at)

    for stop_at in (5, 7):  # in the epoch of the change, and in the next one
        with pytest.raises(Stopped):
            attempt(stop_at)
    assert "changed-loader" not in slugs(caplog.text)
    attempt()
    assert_warning(caplog.text, "changed-loader", "collate_fn")


@pytest.mark.parametrize("make_data", [lambda: Drawing(rng()), lambda: Stream(random.Random(1))], ids=["map", "stream"])
def test_a_validation_by_workers_that_persist_draws_alike(make_data, tmp_path):
    def run(folder, stop_at=None):
        loader, found = DataLoader(make_data(), 3, worker_init_fn=seed_by_id, **PERSISTENT), []
        try:
            train(
                folder,
                lambda: [torch.ones(2)] * 3,
                between=lambda *_: found.append([repr(batch) for batch in loader]),
                stop_at=stop_at,
                epochs=3,
            )
        finally:
            end_workers(loader)
        return found

    whole = run(tmp_path / "whole")
    assert whole[0] != whole[1] != whole[2]
    with pytest.raises(Stopped):
        run(tmp_path / "run", stop_at=4)
    assert run(tmp_path / "run") == whole[1:]


@pytest.mark.parametrize("kind", ["continues", "seeded", "saved"])
def test_a_generator_that_is_not_restored_is_named(kind, tmp_path, caplog):
    generator = torch.Generator()
    loader = DataLoader(Samples(), 4, shuffle=True, generator=generator)

    def validate(*_):
        if kind == "seeded":
            generator.manual_seed(1)
        list(loader)

    extra = generator if kind == "saved" else None
    train(tmp_path, lambda: [torch.ones(2)] * 3, between=validate, epochs=3, extra=extra)
    assert slugs(caplog.text).count("unsaved-generator") == (kind == "continues")


@pytest.mark.parametrize("options", [{}, WORKER], ids=["rank", "worker"])
@pytest.mark.parametrize("endless", [False, True])
def test_the_body_may_draw_from_a_generator_of_the_loader(options, endless, tmp_path, monkeypatch):
    monkeypatch.setattr("slipway.order.CHUNK", 2)

    def make_loader():
        own = torch.Generator()
        sampler = Endless(lambda: torch.rand(1, generator=own).item()) if endless else RandomSampler(Samples())
        return DataLoader(Drawing(rng()), 4, sampler=sampler, generator=own, **options)

    def draw(loader):
        return torch.rand(1, generator=loader.generator).item(), loader.dataset.draw()

    assert_resumes(tmp_path, make_loader, [5], body=draw, limit=4 if endless else None)

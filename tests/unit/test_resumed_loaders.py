"""Many kinds of loaders under a session: a run stopped anywhere gets the batches of an uninterrupted run."""

import functools
import gc
import random
from itertools import chain, islice

import numpy as np
import pytest
import torch
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

from attempts import Attempt, whole_and_stopped
from messages import assert_warning, slugs
from slipway import Stopped
from slipway.data.array_digest import data_digest_of
from slipway.data.workers import end_workers

pytestmark = pytest.mark.usefixtures("agree_after_each_step")

SAMPLES = 12


@pytest.fixture(autouse=True)
def end_of_workers():
    """End the remaining workers, since the garbage collector takes five seconds per worker."""
    yield
    for found in gc.get_objects():
        if type(found) is _MultiProcessingDataLoaderIter:
            found._shutdown_workers()


def draw_of_numpy():
    return np.random.randn()  # noqa: NPY002 -- the global one


class Samples(Dataset):
    """Numbers with noise from the global generators and from what subclasses add."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.tensor([index, random.gauss(), draw_of_numpy(), torch.rand(1).item(), self.draw()])

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
    """Draws from its own generator, which continues from epoch to epoch."""

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


class Leveled(Samples):
    def __init__(self):
        self.level = 0

    def draw(self):
        return self.level


def set_level_by_worker(worker):
    get_worker_info().dataset.level = 0.5 + worker


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
    "worker by worker": lambda: DataLoader(Leveled(), 4, num_workers=2, worker_init_fn=set_level_by_worker),
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


def train(attempt, make_loader, *, epochs=2, between=None, limit=None, extra=None, body=None):
    """Train on the batches of ``make_loader()``, which may return a new iterable for each epoch."""
    make = make_loader()
    with attempt.open(extra=extra) as session:
        for epoch in session.epochs(epochs):
            if between:
                between(epoch, make)
            for batch in session.batches(make() if callable(make) else make):
                attempt.update(torch.rand(1).item() + draw_of_numpy() + random.gauss())
                attempt.seen.append(repr(batch) + str(body and body(make)))
                if session.batch + 1 == limit:
                    break
        return attempt.result(session)


def assert_resumes(tmp_path, make_loader, stop_at, **options):
    """Return the batches of an uninterrupted run and of all attempts of a stopped run."""
    seen = whole_and_stopped(tmp_path, functools.partial(train, make_loader=make_loader, **options), stop_at)
    return [*chain(*seen)][1::2]


@pytest.mark.parametrize("name", LOADERS)
def test_resumed_run_gets_batches_of_uninterrupted_run(name, tmp_path):
    whole = assert_resumes(tmp_path, LOADERS[name], 4 if name == "worker by worker" else 5)
    assert len(set(whole)) == len(whole) or name == "list"


class Backwards(list):
    def __iter__(self):
        return reversed(self)


@pytest.mark.parametrize("kind", [range, tuple, Backwards])
def test_batches_in_memory_are_skipped_without_reading(kind, tmp_path, caplog):
    batches = range(4) if kind is range else kind(range(4))
    assert_resumes(tmp_path, lambda: batches, 2, epochs=1)
    if kind is Backwards:
        assert_warning(caplog.text, "slow-resume", 2)
    else:
        assert "slow-resume" not in slugs(caplog.text)


@pytest.mark.parametrize("kind", [Endless, EndlessWithLength])
@pytest.mark.parametrize("options", [{"batch_size": None}, {"batch_size": 2, **WORKER}], ids=repr)
def test_endless_sampler_with_break_resumes_exactly(kind, options, tmp_path, monkeypatch):
    monkeypatch.setattr("slipway.data.order.CHUNK", 4)
    own = random.Random(3)
    draws = [random.random, own.random, lambda: torch.rand(1).item()]
    for number, draw in enumerate(draws[: 1 if options.get("num_workers") else 3]):
        assert_resumes(
            tmp_path / str(number),
            lambda draw=draw: DataLoader(Samples(), sampler=kind(draw), **options),
            9 if number else 12,
            limit=11,
        )


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


def relabel(epoch, loader):
    loader.dataset.labels[0] = epoch


def weighted():
    return DataLoader(Samples(), 4, sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES))


def plain():
    return DataLoader(Samples(), 4)


def once(change):
    """Return a function that changes a loader only before the second epoch."""
    return lambda epoch, loader: change(loader) if epoch == 1 else None


halve_once = once(lambda loader: setattr(loader, "collate_fn", halve))
raise_once = once(lambda loader: setattr(loader.dataset, "level", 1))
relabel_once = once(lambda loader: loader.dataset.labels.add_(1))
replace_once = once(lambda loader: setattr(loader.dataset, "labels", np.ones(1)))
weigh_once = once(lambda loader: setattr(loader.sampler, "weights", loader.sampler.weights * torch.arange(SAMPLES)))
grow_once = once(lambda loader: loader.dataset.indices.extend([3] * 4))


@pytest.mark.parametrize("workers", [{}, PERSISTENT], ids=["rank", "workers"])
@pytest.mark.parametrize("change", [halve_once, raise_once], ids=["loader", "data"])
def test_loader_change_takes_effect_in_next_pass(change, workers, tmp_path):
    found = []
    for between in (None, change):
        train(
            attempt := Attempt(tmp_path / str(between)), lambda: DataLoader(Counting(), 4, **workers), between=between
        )
        found.append(attempt.seen[1::2])
    assert [was == now for was, now in zip(*found, strict=True)] == [True] * 3 + [False] * 3


MADE_AGAIN = {
    "in the epoch itself": (halve_once, plain, 5),
    "in each epoch": (lambda epoch, loader: setattr(loader, "collate_fn", halve if epoch else torch.stack), plain, 7),
    "of the data set": (
        lambda epoch, loader: setattr(loader.dataset, "level", epoch),
        lambda: DataLoader(Leveled()),
        6,
    ),
    "of a tensor": (relabel, lambda: DataLoader(Labeled(torch.zeros(1)), 4), 7),
    "of an array, between epochs": (relabel, lambda: DataLoader(Labeled(np.zeros(1)), 4), 6),
    "loaders that take turns": (lambda epoch, loaders: setattr(loaders, "epoch", epoch), Alternating, 6),
}
LACKING = {
    "within a later epoch": (halve_once, plain, 7, "collate_fn"),
    "between epochs": (halve_once, plain, 6, "collate_fn"),
    "with workers": (halve_once, lambda: DataLoader(Samples(), 4, **WORKER), 7, "collate_fn"),
    "of the data set": (raise_once, lambda: DataLoader(Leveled(), 4), 7, "dataset.level"),
    "of a tensor": (relabel_once, lambda: DataLoader(Labeled(torch.zeros(1)), 4), 7, "dataset.labels"),
    "of an array": (replace_once, lambda: DataLoader(Labeled(np.zeros(1)), 4), 6, "dataset.labels"),
    "of weights, between epochs": (weigh_once, weighted, 6, "sampler.weights"),
    "of a list": (grow_once, lambda: DataLoader(Subset(Samples(), [*range(SAMPLES)]), 4), 7, "dataset.indices"),
    "counted while samples are fetched": (None, lambda: DataLoader(Counting(), 4), 2, "dataset.fetched"),
    "counted by a stream": (None, lambda: DataLoader(CountingStream(), 3), 5, "dataset.passes"),
    "counted by a sampler": (None, lambda: DataLoader(Samples(), 2, sampler=CountingOrder()), 3, "sampler.passes"),
}


@pytest.mark.parametrize("name", MADE_AGAIN)
def test_loader_change_repeated_by_resumed_attempt_is_exact(name, tmp_path, caplog):
    change, make_loader, stop_at = MADE_AGAIN[name]
    assert_resumes(tmp_path, make_loader, stop_at, between=change, epochs=3)
    assert "changed-loader" not in slugs(caplog.text)


@pytest.mark.parametrize("name", LACKING)
def test_loader_change_missing_in_resumed_attempt_is_reported(name, tmp_path, caplog):
    change, make_loader, stop_at, named = LACKING[name]
    with pytest.raises(Stopped):
        train(Attempt(tmp_path, stop_at), make_loader, between=change, epochs=3)
    assert "changed-loader" not in slugs(caplog.text)
    train(Attempt(tmp_path), make_loader, between=change, epochs=3)
    assert_warning(caplog.text, "changed-loader", named)


@pytest.mark.parametrize("make", [torch.zeros, np.zeros, lambda shape: torch.zeros(shape[::-1]).T])
def test_digest_of_large_data_samples_elements_at_equal_distances(make):
    data = make((1000, 600))
    before = data_digest_of(data)
    data[7] = 1
    assert data_digest_of(data) != before


def test_digest_of_slow_data_covers_only_shape(tmp_path):
    mapped = np.memmap(tmp_path / "data", "float32", "w+", shape=(8,))
    (tmp_path / "tensor").write_bytes(bytes(32))
    of_file = torch.from_file(str(tmp_path / "tensor"), shared=True, size=8)
    for data in (mapped, mapped[2:], of_file, torch.empty(8, device="meta"), np.array(["a", None])):
        assert data_digest_of(data).endswith("]")
    assert not data_digest_of(torch.ones(3, dtype=torch.bfloat16, requires_grad=True)).endswith("]")


@pytest.mark.parametrize(("copies", "stop_at"), [(True, 2), (True, 5), (False, 2)])
def test_list_shuffled_by_script_each_epoch_resumes_exactly(copies, stop_at, tmp_path):
    assert_resumes(tmp_path, lambda: shuffling(copies=copies), stop_at)


def test_list_shuffled_in_place_is_reported_in_later_epoch(tmp_path, caplog):
    with pytest.raises(Stopped):
        train(Attempt(tmp_path, 5), lambda: shuffling(copies=False))
    train(Attempt(tmp_path), lambda: shuffling(copies=False))
    assert "different-data" in slugs(caplog.text)


def shuffling(*, copies):
    """Return a function that shuffles a list of batches, or a copy of it, in each epoch."""
    batches = [torch.full((2, 1), float(number)) for number in range(3)]

    def shuffled():
        order = [*batches] if copies else batches
        random.shuffle(order)
        return order

    return shuffled


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
def test_sampler_in_extra_changed_within_epoch_is_reported(within, tmp_path, caplog):
    def script(attempt):
        sampler = Weighted()

        def weigh(epoch):
            sampler.chances = torch.arange(float(SAMPLES)) + epoch

        return train(
            attempt,
            lambda: DataLoader(Samples(), 4, sampler=sampler),
            extra=sampler,
            body=(lambda _: weigh(2.0)) if within else None,
            between=lambda epoch, _: None if within else weigh(epoch),
        )

    if within:
        with pytest.raises(Stopped):
            script(Attempt(tmp_path, 2))
        script(Attempt(tmp_path))
    else:
        whole_and_stopped(tmp_path, script, 2)
    assert slugs(caplog.text).count("changed-loader") == within


def test_repeated_loader_change_is_remembered_by_later_attempts(tmp_path, caplog):
    for stop_at in (5, 2):  # in the epoch of the change, and in the next one
        with pytest.raises(Stopped):
            train(Attempt(tmp_path, stop_at), plain, between=halve_once, epochs=3)
    assert "changed-loader" not in slugs(caplog.text)
    train(Attempt(tmp_path), plain, between=halve_once, epochs=3)
    assert_warning(caplog.text, "changed-loader", "collate_fn")


@pytest.mark.parametrize("make_data", [lambda: Drawing(rng()), lambda: Stream(random.Random(1))], ids=["map", "stream"])
def test_validation_with_persistent_workers_draws_same_after_resume(make_data, tmp_path):
    def script(attempt):
        loader = DataLoader(make_data(), 3, worker_init_fn=seed_by_id, **PERSISTENT)
        validations = []
        try:
            train(
                attempt,
                lambda: [torch.ones(2)] * 3,
                between=lambda *_: validations.append([repr(batch) for batch in loader]),
                epochs=3,
            )
        finally:
            end_workers(loader)
        return validations[-2:]

    first, second = script(Attempt(tmp_path / "seen"))
    assert first != second
    whole_and_stopped(tmp_path, script, 4)


@pytest.mark.parametrize("kind", ["continues", "seeded", "saved"])
def test_unsaved_loader_generator_is_reported(kind, tmp_path, caplog):
    generator = torch.Generator()
    loader = DataLoader(Samples(), 4, shuffle=True, generator=generator)

    def validate(*_):
        if kind == "seeded":
            generator.manual_seed(1)
        list(loader)

    extra = generator if kind == "saved" else None
    train(Attempt(tmp_path), lambda: [torch.ones(2)] * 3, between=validate, epochs=3, extra=extra)
    assert slugs(caplog.text).count("unsaved-generator") == (kind == "continues")


@pytest.mark.parametrize("options", [{}, WORKER], ids=["rank", "worker"])
@pytest.mark.parametrize("endless", [False, True])
def test_loop_body_drawing_from_loader_generator_resumes_exactly(options, endless, tmp_path, monkeypatch):
    monkeypatch.setattr("slipway.data.order.CHUNK", 2)

    def make_loader():
        own = torch.Generator()
        sampler = Endless(lambda: torch.rand(1, generator=own).item()) if endless else RandomSampler(Samples())
        return DataLoader(Drawing(rng()), 4, sampler=sampler, generator=own, **options)

    def draw(loader):
        return torch.rand(1, generator=loader.generator).item(), loader.dataset.draw()

    assert_resumes(tmp_path, make_loader, 5, body=draw, limit=4 if endless else None)

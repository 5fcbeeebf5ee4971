"""Data that changed between attempts: another split, other samples, another order."""

import numpy as np
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

from attempts import Attempt, whole_and_stopped
from messages import refused, slugs
from slipway import Sampler, Stopped

pytestmark = pytest.mark.usefixtures("agree_after_each_step")

SAMPLES = 24


def data():
    return TensorDataset(torch.arange(float(SAMPLES))[:, None] / SAMPLES)


class Listed(Dataset):
    """Samples with names, such as files."""

    def __init__(self, names):
        self.samples = [(name, len(name)) for name in names]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return (torch.tensor([float(self.samples[index][1])]),)


def names(folder, order):
    return [f"{folder}/{'x' * int(number)}.png" for number in order]


LOADERS = {
    "random_split": lambda order: DataLoader(Subset(data(), order[:16].tolist()), 4, shuffle=True),
    "nested": lambda order: DataLoader(Subset(Subset(data(), order[:20]), range(16)), 4),
    "concatenated": lambda order: DataLoader(
        ConcatDataset([Subset(data(), order[:8]), Subset(data(), order[8:16])]), 4
    ),
    "sampler": lambda order: DataLoader(data(), 4, sampler=SubsetRandomSampler(order[:16].tolist())),
    "weights": lambda order: DataLoader(data(), 4, sampler=WeightedRandomSampler((order + 1.0).tolist(), 16)),
    "slipway's sampler": lambda order: DataLoader(s := Subset(data(), order[:16]), 4, sampler=Sampler(s)),
    "tensors": lambda order: DataLoader(TensorDataset(order[:16, None] / SAMPLES), 4),
    "arrays": lambda order: DataLoader([(row,) for row in (order[:16, None] / SAMPLES).float().numpy()], 4),
    "files": lambda order: DataLoader(Listed(names("a", order[:16])), 4),
}
BY_INDEX = [*LOADERS][:6]


def ordered(seed):
    return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed))


def train(attempt, make_loader, **options):
    """Train three epochs with the loaders of ``make_loader(epoch)``."""
    with attempt.open(**options) as session:
        for epoch in session.epochs(3):
            loader = make_loader(epoch) if callable(make_loader) else make_loader
            for (inputs,) in session.batches(loader):
                attempt.update(inputs)


def stop(folder, stop_at, loader):
    with pytest.raises(Stopped):
        train(Attempt(folder, stop_at), loader)


def turns(*loaders):
    """Return a function that returns the loaders in turn, one per epoch."""
    return lambda epoch: loaders[epoch % len(loaders)]


def taking_turns(case, seed):
    return turns(LOADERS[case](ordered(seed)), LOADERS[case](ordered(2)))


@pytest.mark.parametrize("case", LOADERS)
def test_unchanged_data_does_not_warn(case, tmp_path, caplog):
    for stop_at in (2, 2):
        stop(tmp_path, stop_at, LOADERS[case](ordered(0)))
    train(Attempt(tmp_path), LOADERS[case](ordered(0)))
    assert slugs(caplog.text) == []


@pytest.mark.parametrize("stop_at", [2, 4])
@pytest.mark.parametrize("case", BY_INDEX)
def test_changed_split_is_refused(case, stop_at, tmp_path):
    stop(tmp_path, stop_at, LOADERS[case](ordered(0)))
    with refused("different-data", "random_split"):
        train(Attempt(tmp_path), LOADERS[case](ordered(1)))


@pytest.mark.parametrize("stop_at", [2, 4])
@pytest.mark.parametrize("case", [*LOADERS][6:])
def test_changed_samples_of_dataset_warn(case, stop_at, tmp_path, caplog):
    stop(tmp_path, stop_at, LOADERS[case](ordered(0)))
    train(Attempt(tmp_path), LOADERS[case](ordered(1)))
    assert slugs(caplog.text) == ["different-data"]


@pytest.mark.parametrize("stop_at", [4, 6, 8])
@pytest.mark.parametrize("case", LOADERS)
def test_unchanged_alternating_loaders_do_not_warn(case, stop_at, tmp_path, caplog):
    stop(tmp_path, stop_at, taking_turns(case, 0))
    train(Attempt(tmp_path), taking_turns(case, 0))
    assert slugs(caplog.text) == []


@pytest.mark.parametrize("case", BY_INDEX)
def test_changed_split_in_alternating_loaders_is_refused(case, tmp_path):
    stop(tmp_path, 4, taking_turns(case, 0))
    with refused("different-data", "random_split"):
        train(Attempt(tmp_path), taking_turns(case, 1))


class Endless(IterableDataset):
    """Samples without a length."""

    def __iter__(self):
        return (data()[number] for number in range(SAMPLES))


class Proxy(Dataset):
    """Raises another error than AttributeError for a missing attribute, and holds a tensor without a shape."""

    def __init__(self):
        self.nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

    def __len__(self):
        return 16

    def __getitem__(self, index):
        return (torch.ones(1) * index,)

    def __getattr__(self, name):
        raise AttributeError(name) if name.startswith("__") else RuntimeError(name)


@pytest.mark.parametrize(("make", "stop_at"), [(Endless, 10), (Proxy, 8)])
def test_digest_accepts_iterable_and_proxy_datasets(make, stop_at, tmp_path, caplog):
    def loaders():
        return turns(DataLoader(make(), 4), LOADERS["random_split"](ordered(2)))

    stop(tmp_path, stop_at, loaders())
    train(Attempt(tmp_path), loaders())
    assert slugs(caplog.text) == []


@pytest.mark.parametrize("stop_at", [2, 4, 6])
def test_split_drawn_in_each_epoch_does_not_warn(stop_at, tmp_path, caplog):
    def make_loader(epoch):
        found, _ = random_split(data(), [16, SAMPLES - 16])  # from the session's seed
        return DataLoader(Subset(found, range(8 + 4 * epoch)), 4)

    stop(tmp_path, stop_at, make_loader)
    train(Attempt(tmp_path), make_loader)
    assert slugs(caplog.text) == []


def test_same_files_in_another_folder_do_not_warn(tmp_path, caplog):
    stop(tmp_path, 2, DataLoader(Listed(names("/scratch/1", ordered(0)[:16])), 4))
    train(Attempt(tmp_path), DataLoader(Listed(names("/scratch/2", ordered(0)[:16])), 4))
    assert slugs(caplog.text) == []


def test_dataset_with_state_dict_does_not_warn(tmp_path, caplog):
    class Stateful(Listed):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            self.samples = self.samples[::-1]

    def script(attempt):
        dataset = Stateful(names("a", np.arange(16)))
        train(attempt, DataLoader(dataset, 4), extra=dataset)

    with pytest.raises(Stopped):
        script(Attempt(tmp_path, 2))
    script(Attempt(tmp_path))
    assert slugs(caplog.text) == []


class Restored(WeightedRandomSampler):
    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


@pytest.mark.parametrize("stop_at", [3, 4])
def test_restored_sampler_weights_are_not_a_changed_split(stop_at, tmp_path):
    def script(attempt):
        sampler = Restored([1.0] * SAMPLES, SAMPLES)
        with attempt.open(extra=sampler) as session:
            for epoch in session.epochs(2):
                for (batch,) in session.batches(DataLoader(data(), 8, sampler=sampler)):
                    attempt.update(batch)
                sampler.weights = torch.arange(1.0 + epoch, SAMPLES + 1 + epoch)
            return attempt.result(session)

    whole_and_stopped(tmp_path, script, stop_at)

"""Data that a resumed attempt does not have again: another split, other samples, in another order."""

import os
import signal

import numpy as np
import pytest
import torch
from torch import nn
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

from messages import refused, slugs
from slipway import Sampler, Session, Stopped

pytestmark = pytest.mark.usefixtures("agree_after_each_step")

SAMPLES = 24


def data():
    return TensorDataset(torch.arange(float(SAMPLES))[:, None] / SAMPLES)


class Listed(Dataset):
    """Samples by name, as of files."""

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


class Script:
    """A training whose loader is made before its first epoch, from an order that another attempt may not have."""

    def __init__(self, folder, case, seed, each=None, loaders=()):
        torch.manual_seed(0)
        self.model = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = LOADERS[case](ordered(seed))
        self.each = (lambda epoch: loaders[epoch % len(loaders)]) if loaders else each
        self.loaders = loaders
        self.session = Session(model=self.model, optimizer=self.optimizer, folder=folder)

    def run(self, *, stop_at=None):
        with self.session as session:
            for epoch in session.epochs(3):
                if self.each:
                    self.loader = self.each(epoch)
                for (inputs,) in session.batches(self.loader):
                    self.optimizer.zero_grad()
                    self.model(inputs.float()).square().mean().backward()
                    self.optimizer.step()
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
        return self


@pytest.mark.parametrize("case", LOADERS)
def test_the_same_data_are_not_named(case, tmp_path, caplog):
    for stop_at in (2, 4, None):
        try:
            Script(tmp_path, case, 0).run(stop_at=stop_at)
        except Stopped:
            assert stop_at
    assert slugs(caplog.text) == []


@pytest.mark.parametrize("stop_at", [2, 4])
@pytest.mark.parametrize("case", BY_INDEX)
def test_another_split_is_refused(case, stop_at, tmp_path):
    with pytest.raises(Stopped):
        Script(tmp_path, case, 0).run(stop_at=stop_at)
    with refused("different-data", "random_split"):
        Script(tmp_path, case, 1).run()


@pytest.mark.parametrize("stop_at", [2, 4])
@pytest.mark.parametrize("case", [*LOADERS][6:])
def test_other_samples_are_named(case, stop_at, tmp_path, caplog):
    with pytest.raises(Stopped):
        Script(tmp_path, case, 0).run(stop_at=stop_at)
    Script(tmp_path, case, 1).run()
    assert slugs(caplog.text) == ["different-data"]


@pytest.mark.parametrize("stop_at", [4, 6, 8])
@pytest.mark.parametrize("case", LOADERS)
def test_loaders_that_take_turns_are_the_same_data(case, stop_at, tmp_path, caplog):
    def attempt(seed):
        return Script(tmp_path, "tensors", 0, loaders=[LOADERS[case](ordered(seed)), LOADERS[case](ordered(2))])

    with pytest.raises(Stopped):
        attempt(0).run(stop_at=stop_at)
    attempt(0).run()
    assert slugs(caplog.text) == []


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


@pytest.mark.parametrize("make", [Endless, Proxy])
def test_data_sets_of_any_kind_can_be_looked_at(make, tmp_path, caplog):
    def attempt():
        return Script(tmp_path, "tensors", 0, loaders=[DataLoader(make(), 4), LOADERS["random_split"](ordered(2))])

    with pytest.raises(Stopped):
        attempt().run(stop_at=8 if make is Proxy else 10)
    attempt().run()
    assert slugs(caplog.text) == []


@pytest.mark.parametrize("case", BY_INDEX)
def test_another_split_is_refused_where_loaders_take_turns(case, tmp_path):
    def attempt(seed):
        return Script(tmp_path, "tensors", 0, loaders=[LOADERS[case](ordered(seed)), LOADERS[case](ordered(2))])

    with pytest.raises(Stopped):
        attempt(0).run(stop_at=4)
    with refused("different-data", "random_split"):
        attempt(1).run()


@pytest.mark.parametrize("stop_at", [2, 4, 6])
def test_a_split_that_each_epoch_makes_anew_is_not_named(stop_at, tmp_path, caplog):
    def each(epoch):
        train, _ = random_split(data(), [16, SAMPLES - 16])  # by the session's seed
        return DataLoader(Subset(train, range(8 + 4 * epoch)), 4)

    with pytest.raises(Stopped):
        Script(tmp_path, "tensors", 0, each).run(stop_at=min(stop_at, 6))
    Script(tmp_path, "tensors", 0, each).run()
    assert slugs(caplog.text) == []


def test_a_folder_of_each_job_is_no_other_data(tmp_path, caplog):
    for place, stop_at in (("/scratch/1", 2), ("/scratch/2", None)):
        script = Script(tmp_path, "files", 0)
        script.loader = DataLoader(Listed(names(place, ordered(0)[:16])), 4)
        try:
            script.run(stop_at=stop_at)
        except Stopped:
            assert stop_at
    assert slugs(caplog.text) == []


def test_data_that_restore_themselves_are_left_to_that(tmp_path, caplog):
    class Stateful(Listed):
        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            self.samples = self.samples[::-1]

    for stop_at in (2, None):
        script = Script(tmp_path, "files", 0)
        dataset = Stateful(names("a", np.arange(16)))
        script.loader = DataLoader(dataset, 4)
        script.session = Session(model=script.model, optimizer=script.optimizer, extra=dataset, folder=tmp_path)
        try:
            script.run(stop_at=stop_at)
        except Stopped:
            assert stop_at
    assert slugs(caplog.text) == []


class Restored(WeightedRandomSampler):
    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        self.weights = state["weights"]


@pytest.mark.parametrize("stop_at", [3, 4])
def test_weights_that_are_restored_are_not_another_split(stop_at, tmp_path):
    def run(stop_at=0):
        model, sampler = nn.Linear(1, 1), Restored([1.0] * SAMPLES, SAMPLES)
        optimizer, drawn = torch.optim.SGD(model.parameters(), lr=0.1), []
        with Session(model=model, optimizer=optimizer, extra=sampler, seed=0, folder=tmp_path) as session:
            for epoch in session.epochs(2):
                for (batch,) in session.batches(DataLoader(data(), 8, sampler=sampler)):
                    drawn.append(batch.tolist())
                    model(batch).sum().backward()
                    optimizer.step()
                    if session.step + 1 == stop_at:
                        os.kill(os.getpid(), signal.SIGTERM)
                sampler.weights = torch.arange(1.0 + epoch, SAMPLES + 1 + epoch)
        return drawn

    with pytest.raises(Stopped):
        run(stop_at)
    assert len(run()) == 6 - stop_at

"""A session restores what it saved: each optimizer and scheduler of torch, generators, wrapped models."""

import inspect

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from savers import copy_through_disk
from slipway.state.named_objects import named_objects

NEEDED = {"lr": 0.01, "max_iter": 2}
OPTIMIZERS = {
    name: kind
    for name, kind in vars(torch.optim).items()
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
}
SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 4, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 6),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.001, 0.1, step_size_up=2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o
    ),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, anneal_epochs=4),
}


def network(dtype=torch.float32):
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)).to(dtype)


def advance(model, optimizer, steps, *, sparse=False):
    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3, dtype=next(model.parameters()).dtype)).square().mean()
        loss.backward()
        if sparse:
            for parameter in model.parameters():
                parameter.grad = parameter.grad.to_sparse()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


def make(name, model):
    kind = OPTIMIZERS[name]
    arguments = {key: value for key, value in NEEDED.items() if key in inspect.signature(kind).parameters}
    return kind(model.parameters(), **arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_torch_optimizer_resumes_bitwise(name, dtype, tmp_path):
    first, second = network(dtype), network(dtype)
    one, two = make(name, first), make(name, second)
    sparse = name == "SparseAdam"
    advance(first, one, 3, sparse=sparse)
    copy_through_disk({"model": first, "optimizer": one}, {"model": second, "optimizer": two}, tmp_path)
    assert str(two.state_dict()) == str(one.state_dict())
    for model, optimizer in ((first, one), (second, two)):
        advance(model, optimizer, 3, sparse=sparse)
    assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))


def test_every_torch_scheduler_has_test_case():
    public = {
        name
        for name, kind in vars(lr_scheduler).items()
        if inspect.isclass(kind) and issubclass(kind, lr_scheduler.LRScheduler) and not name.startswith(("_", "LRS"))
    }
    assert public <= SCHEDULERS.keys()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_each_torch_scheduler_resumes_with_same_rates(name, tmp_path):
    def advance_rates(scheduler, optimizer, steps):
        rates = []
        for number in range(steps):
            optimizer.step()
            scheduler.step(*([1.0 + number] if name == "ReduceLROnPlateau" else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    def both():
        optimizer = torch.optim.SGD(network().parameters(), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "scheduler": SCHEDULERS[name](optimizer)}

    first, second = both(), both()
    advance_rates(**first, steps=3)
    copy_through_disk(first, second, tmp_path)
    assert advance_rates(**second, steps=5) == advance_rates(**first, steps=5)


def test_tied_weights_stay_tied_after_restore(tmp_path):
    def tied():
        model = nn.ModuleDict({"tokens": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
        model["head"].weight = model["tokens"].weight
        return model

    first, second = tied(), tied()
    copy_through_disk(first, second, tmp_path)
    assert second["head"].weight is second["tokens"].weight
    assert torch.equal(second["head"].weight, first["head"].weight)


def test_optimizer_state_keeps_channels_last_format(tmp_path):
    def build():
        torch.manual_seed(0)
        model = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        return model, torch.optim.Adam(model.parameters(), fused=True)

    (first, one), (second, two) = build(), build()
    first(torch.ones(1, 2, 4, 4)).sum().backward()
    one.step()
    copy_through_disk({"optimizer": one}, {"optimizer": two}, tmp_path)
    assert two.state[second.weight]["exp_avg"].is_contiguous(memory_format=torch.channels_last)


def test_named_objects_of_none_single_list_and_dict():
    assert named_objects("model", None) == {}
    assert named_objects("model", 3) == {"model": 3}
    assert named_objects("model", [1, 2]) == {"model.0": 1, "model.1": 2}
    assert named_objects("model", {"a": 1}) == {"model.a": 1}


class Counters(dict):
    """The class shown in docs/howto/session.md."""

    def state_dict(self):
        return dict(self)

    def load_state_dict(self, state):
        self.update(state)


class History(list):
    """A list with a state."""

    def state_dict(self):
        return {"items": [*self]}

    def load_state_dict(self, state):
        self[:] = state["items"]


@pytest.mark.parametrize(("one", "other"), [(Counters(best=0.5, patience=3), Counters()), (History([1, 2]), History())])
def test_container_with_state_dict_counts_as_one_object(one, other, tmp_path):
    assert named_objects("extra", one) == {"extra": one}
    assert named_objects("extra", {"a": one, "b": [1]}) == {"extra.a": one, "extra.b": [1]}
    copy_through_disk({"extra": one}, {"extra": other}, tmp_path)
    assert other == one


def test_module_containers_count_as_one_model():
    for model in (nn.ModuleDict({"a": nn.Linear(1, 1)}), nn.ModuleList([nn.Linear(1, 1)]), nn.Sequential()):
        assert named_objects("model", model) == {"model": model}

"""Optimizers whose groups change, with their own state format, or with a scheduler that the session does not have."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, lr_scheduler

from messages import assert_warning, refused, slugs
from slipway.checkpoint.stateful import join, split
from slipway.state.named_objects import session_components
from slipway.state.schedulers import has_unsaved_scheduler


def parts_of(model, optimizer, **others):
    """Return the components that save a model, an optimizer and other objects of a session, by name."""
    others = {"scheduler": {}, "scaler": {}, "extra": {}, **others}
    return session_components({"model": {"model": model}, "optimizer": {"optimizer": optimizer}, **others})


class Script:
    """A model whose optimizer initially has only the last layer."""

    def __init__(self, *, of_model=True):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 1))
        self.optimizer = Adam(self.model[2].parameters(), lr=0.1)
        self.parts = parts_of(self.model if of_model else self.model[2], self.optimizer)

    def train(self, steps=2):
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.ones(1, 2)).sum().backward()
            self.optimizer.step()

    def saved(self):
        return copy.deepcopy({name: join(*split(part.state_dict(), name)) for name, part in self.parts.items()})

    def load(self, saved):
        for name, part in self.parts.items():
            part.load_state_dict(saved[name])


def add(script, layer, **options):
    script.optimizer.add_param_group({"params": list(script.model[layer].parameters()), **options})


def extend(script):
    script.optimizer.param_groups[0]["params"].extend(script.model[0].parameters())


def replace(script):
    script.optimizer.param_groups[0]["params"] = list(script.model[1].parameters())
    script.optimizer.state.clear()


def fewer(script):
    add(script, 0)
    add(script, 1)
    script.optimizer.param_groups.pop(0)
    script.optimizer.state.clear()


CHANGES = {
    "a group": lambda script: add(script, 0, lr=0.01, betas=(0.5, 0.9)),
    "two groups": lambda script: (add(script, 0), add(script, 1, weight_decay=0.1)),
    "parameters of a group": extend,
    "other parameters": replace,
    "one group less": fewer,
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameter_groups_are_recreated_on_resume(change):
    whole = Script()
    whole.train()
    CHANGES[change](whole)
    whole.train()
    saved, resumed = whole.saved(), Script()
    resumed.load(saved)  # when the session opens
    resumed.load(saved)
    assert str(resumed.optimizer.state_dict()) == str(whole.optimizer.state_dict())
    for script in (whole, resumed):
        script.train()
    assert all(map(torch.equal, whole.model.state_dict().values(), resumed.model.state_dict().values()))


def test_groups_added_again_by_script_are_restored():
    whole = Script()
    add(whole, 0)
    whole.train()
    saved, resumed = whole.saved(), Script()
    resumed.load(saved)
    add(resumed, 0)
    resumed.load(saved)
    assert str(resumed.optimizer.state_dict()) == str(whole.optimizer.state_dict())


def test_groups_of_unknown_model_warn_at_save_and_block_resume(caplog):
    whole = Script(of_model=False)
    add(whole, 0)
    saved, resumed = whole.saved(), Script(of_model=False)
    assert slugs(caplog.text) == ["unresumable-state"]
    assert_warning(caplog.text, "unresumable-state", "optimizer")
    resumed.load(saved)
    with refused("different-state", "optimizer", [2, 2], [2], "peek"):
        resumed.load(saved)


def test_save_is_refused_until_missing_groups_are_restored():
    whole = Script()
    add(whole, 0)
    saved, resumed = whole.saved(), Script()
    resumed.load(saved)
    with refused("different-state", "optimizer", [2, 2], [2]):
        resumed.saved()
    resumed.load(saved)
    resumed.saved()


def test_optimizer_with_extra_groups_is_refused_at_open():
    saved, resumed = Script().saved(), Script()
    add(resumed, 0)
    with refused("different-state", "optimizer", [2, 2], [2]):
        resumed.load(saved)


def test_unchanged_groups_add_nothing_to_saved_state():
    script = Script()
    assert script.saved()["optimizer"].keys() == script.optimizer.state_dict().keys()


class Momentum(torch.optim.Optimizer):
    """An optimizer whose state_dict has its own format."""

    def __init__(self, parameters):
        super().__init__(parameters, {"alpha": 0.9})
        self.velocity = [torch.zeros_like(each) for each in self.param_groups[0]["params"]]

    def step(self):
        for each, velocity in zip(self.param_groups[0]["params"], self.velocity, strict=True):
            each.data.sub_(velocity.mul_(0.9).add_(each.grad))

    def state_dict(self):
        return {"velocity": self.velocity}

    def load_state_dict(self, state_dict):
        self.velocity = [each.clone() for each in state_dict["velocity"]]


def test_state_without_groups_is_loaded_by_optimizer():
    def build():
        model = nn.Linear(1, 1)
        return Momentum(model.parameters()), model

    (first, model), (second, other) = build(), build()
    model(torch.ones(1, 1)).sum().backward()
    first.step()
    one, two = parts_of(model, first)["optimizer"], parts_of(other, second)["optimizer"]
    two.load_state_dict(join(*split(one.state_dict(), "optimizer")))
    assert second.velocity == first.velocity


def optimizer():
    return SGD(nn.Linear(1, 1).parameters(), lr=0.1)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, 1),
        lambda o: lr_scheduler.LambdaLR(o, lambda _: 1.0),
        lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [2]),
        lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o)], optimizer=o),
    ],
)
def test_unsaved_scheduler_is_found_by_its_optimizer(make):
    given, other = optimizer(), optimizer()
    assert not has_unsaved_scheduler(given, [])
    scheduler, of_other = make(given), make(other)
    assert has_unsaved_scheduler(given, [])
    assert has_unsaved_scheduler(given, [of_other])
    assert not has_unsaved_scheduler(given, [of_other, scheduler])


def test_third_party_scheduler_counts_for_any_optimizer():
    class Warmup:
        def state_dict(self):
            return {}

    given = optimizer()
    given.param_groups[0]["initial_lr"] = 0.1
    assert has_unsaved_scheduler(given, [])
    assert not has_unsaved_scheduler(given, [Warmup()])


@pytest.mark.parametrize(("kind", "found"), [("scheduler", []), ("extra", []), (None, ["scheduler-not-given"])])
def test_save_reports_optimizer_with_unsaved_scheduler(kind, found, caplog):
    model = nn.Linear(1, 1)
    given = SGD(model.parameters(), lr=0.1)
    objects = {"scheduler": {}, "extra": {"extra.generator": torch.Generator()}, None: {}}
    objects[kind]["one"] = lr_scheduler.StepLR(given, 1)
    part = parts_of(model, given, scheduler=objects["scheduler"], extra=objects["extra"])["optimizer"]
    for _ in range(2):
        part.state_dict()
    assert slugs(caplog.text) == found
